"""A probe that finds what its test wants: the plan's home names a file of words for each probe."""

import json
import sys
import time
from pathlib import Path

name, plan = sys.argv[1], json.loads(sys.argv[2])
words = json.loads(Path(plan["home"]).read_text()).get(name, {})
for found, facts in words.get("tells", {}).items():
    print(json.dumps({"name": found, "facts": facts}), flush=True)
print(words.get("mumbles", ""), flush=True)
if "pid_file" in words:
    Path(words["pid_file"]).write_text("here")
if words.get("hangs"):
    time.sleep(600)
if "dies" in words:
    sys.exit(words["dies"])
