"""``python -m overlap``, and what ``torchrun -m overlap`` runs."""

from overlap.cli import main

if __name__ == "__main__":
    main()
