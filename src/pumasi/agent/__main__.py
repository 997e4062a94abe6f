"""The agent stands in front of the user's program on every node of a gang.

It needs nothing but a Python >= 3.8, because it also runs where nothing of Pumasi is installed. It starts the ranks of
its node, numbers their output, and ends whatever it has started, however it is ended itself.

The agents of a gang form a star around the chief's agent, the hub. The star starts the ranks only when every agent is
there; ends all of them when one fails, when a member falls silent or when those that decide are done; passes on a stop;
carries MPI's launch requests; and tells who failed first.

    python __main__.py CONFIG.json         be an agent (`-`: the configuration is the first line of standard input, and
                                           what follows is a lifeline: when it closes, the parent is dead)
    python __main__.py pod                 be an agent in a pod: configuration and code are in the environment
    python __main__.py rsh HOST COMMAND    mpirun's way to another node, instead of ssh
    python __main__.py rank COMMAND        stands between mpirun and one rank, so that its output and its end are known
"""

import os
import sys

if __name__ == "__main__":
    # Behind the standard library: what else is installed beside us must not replace any of it.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

    from pumasi.agent.starting import main

    sys.exit(main(sys.argv[1:]))
