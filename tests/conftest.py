"""Every test may use the `ranks` fixture and `rank_test`, and no test may leak."""

import signal

from garbage import collect_less

pytest_plugins = ["ranktest.plugin", "ranktest.leaks"]

# A shell that starts the tests in the background has SIGINT ignored, and every process they start would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup ignores SIGHUP likewise. A handler keeps it from ending the tests, and is not passed on to what they start.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

collect_less()
