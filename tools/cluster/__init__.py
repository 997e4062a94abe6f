"""A real Kubernetes of several nodes on one Linux machine, for tests and development. `python3 -m tools.cluster --help`

    programs.py       the binaries: built once from pinned Go modules, kept outside the checkout
    blueprint.py      what a cluster is to be, as values: addresses, command lines, configurations (pure)
    machine.py        a machine made of Linux namespaces; pulling its plug ends everything in it
    cgroups.py        control groups, of both kinds
    keys.py           certificates, tokens, kubeconfigs
    images.py         container images without content: every container sees this machine's programs
    cluster.py        up, down, and the living cluster that tests hold and break

Standard library only: it runs before anything is installed.
"""
