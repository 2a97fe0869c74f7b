"""The job that is tormented: counts its steps into a checkpoint, and bears witness to each time it runs.

It goes on until the file FOLDER/enough is there, so that every fault finds it at work.

job.py FOLDER STEPS EXIT_CODE
"""

import fcntl
import os
import sys
import time
from pathlib import Path

folder, steps, code = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
witness = os.open(folder / "witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    os.write(witness, b"twice\n")
os.write(witness, b"start %d\n" % os.getpid())
checkpoint = folder / "checkpoint"
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
while step < steps or not (folder / "enough").exists():
    time.sleep(0.1)
    step += 1
    print("step", step, flush=True)
    try:
        (folder / "checkpoint.new").write_text(str(step))
        (folder / "checkpoint.new").rename(checkpoint)
    except OSError:
        # A full disk: what was there stays.
        pass
os.write(witness, b"done\n")
sys.exit(code)
