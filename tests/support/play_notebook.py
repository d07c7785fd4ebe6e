"""Play a notebook in the current folder and write it, with its outputs, to another file.

python play_notebook.py NOTEBOOK RESULT
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main():
    notebook = nbformat.read(sys.argv[1], as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day: a new one in every file otherwise
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    Path(sys.argv[2]).write_text(nbformat.writes(notebook) + "\n")


if __name__ == "__main__":
    main()
