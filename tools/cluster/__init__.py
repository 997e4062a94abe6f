"""A real Kubernetes of several nodes on one Linux machine, for tests and development. `python3 -m tools.cluster --help`

    programs.py       the binaries: built once from pinned Go modules, kept outside the checkout
    blueprint.py      what a cluster is to be, as values: addresses, command lines, configurations (pure)
    machine.py        a machine made of Linux namespaces; pulling its plug ends everything in it
    cgroups.py        control groups, of both kinds
    kwok.yaml         how simulated nodes and their pods live
    keys.py           certificates, tokens, kubeconfigs
    images.py         container images without content: every container sees this machine's programs
    making.py         bringing a cluster up
    cluster.py        the living cluster: what tests hold and break, and taking it down

Standard library only: it runs before anything is installed.
"""
