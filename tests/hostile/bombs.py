"""Texts of a kilobyte that stand for gigabytes of YAML."""


def aliases() -> str:
    """Lists of ten lists each, twelve levels deep."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines) + "\n"


def merges() -> str:
    """Mappings that merge ten mappings each."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    return "\n".join(lines) + "\n"
