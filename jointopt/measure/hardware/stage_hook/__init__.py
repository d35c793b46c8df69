"""A folder for PYTHONPATH: its `sitecustomize` lets a started program report which rank runs which pipeline stage."""
