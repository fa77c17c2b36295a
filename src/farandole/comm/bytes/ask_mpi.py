"""Asks the MPI library what it is, in a separate process: `python -m farandole.comm.bytes.ask_mpi` prints JSON."""

import json

from farandole.comm.bytes.mpi import describe

if __name__ == "__main__":
    print(json.dumps(describe()))
