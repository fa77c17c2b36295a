"""Training plain torch modules. Imported only by runs whose workload has one."""

__all__: list[str] = []
