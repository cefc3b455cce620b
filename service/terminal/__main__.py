"""`python -m service.terminal`."""

from service.terminal import main

if __name__ == "__main__":
    main()
