"""Every test may use the `ranks` fixture and `rank_test`, and no test may leak."""

pytest_plugins = ["ranktest.plugin", "ranktest.leaks"]
