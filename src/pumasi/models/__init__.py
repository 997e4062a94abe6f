"""Models as files: averaged, compared and shown, without the framework that wrote them.

    from pumasi import models
    models.average(["runs/*.h5"], "final.h5", weights=[3, 1, 1])

Needs NumPy, and h5py for HDF5; of Pumasi only `pumasi.errors`. See docs/models.md.
"""

from __future__ import annotations

from pumasi.models.packages import package

package("numpy")

from pumasi.models.averaging import Averaged, Diverged, average  # noqa: E402
from pumasi.models.comparing import Compared, Difference, Shown, diff, show  # noqa: E402

__all__ = ["Averaged", "Compared", "Difference", "Diverged", "Shown", "average", "diff", "show"]
