"""``python -m jointopt``, where the script is not on the path."""

from jointopt.cli.main import main

if __name__ == "__main__":
    main()
