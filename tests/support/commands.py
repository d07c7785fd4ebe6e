"""A program that runs `fedlane` several times in its process.

Its argument is a JSON list of lists of words; it prints a JSON list of {"code": ..., "stdout": ..., "stderr": ...}.
"""

import json
import sys

from support.terminal import fedlane

if __name__ == "__main__":
    results = [fedlane(*words, cwd=".") for words in json.loads(sys.argv[1])]
    named = [{"code": result.returncode, "stdout": result.stdout, "stderr": result.stderr} for result in results]
    print(json.dumps(named))
