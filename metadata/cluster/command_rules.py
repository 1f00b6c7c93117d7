"""The rules by which commands change the cluster state.

After its start a voter applies the commands of its journal again, from its last snapshot on, and the voters have their
snapshots at different places. All of them must come to one state, which is the one that brokers have acted on: leaders
have written records in its LeaderEpochs. So a command that an earlier version has committed is applied as that version
applied it. A controller names the rules of its version with its first command, BeginControllerEpoch; they hold from
that entry on, and never go back.

    0                     versions before R71: of the replicas that may lead, the one whose broker leads the fewest
                          partitions does, wherever its log ends; members that die while a partition is offline leave
                          its ISR; the state has no losses but unclean elections, and not the folder in which a
                          withdrawn replica was sound
    FURTHEST_LOG_LEADS    R71, `Partition.loss_epoch` (R74), and folders that come back (R22)
    RETURNED_SHARE        where all that may lead have returned, and their logs reach equally far, a broker that
                          registers keeps some of the partitions that it led: the one whose broker leads the fewest
                          partitions leads. Before, it gave all of them to the others
"""

from __future__ import annotations

from typing import Final

FURTHEST_LOG_LEADS: Final = 1
RETURNED_SHARE: Final = 2

RULES: Final = RETURNED_SHARE
"""The rules of this version."""
