"""`python -m relayrl`: the `relayrl` command of this Python."""

from relayrl.cli.main import main

if __name__ == "__main__":
    main()
