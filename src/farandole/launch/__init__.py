"""Ranks: how they are started, watched, ended and swept up after.

    launcher  (`farandole launch`)          one process, where the user typed
      mpiexec                               the site's own; places ranks on hosts
        worker  (one a rank)                starts the command, passes its output on, ends it, cleans up
          the user's command

A worker calls the launcher back and takes its orders from there: mpiexec's own ways of ending a job
(silently, or by process id) never come into play. Workers and launcher import no framework and no MPI.
"""

__all__: list[str] = []
