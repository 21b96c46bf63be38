"""What is done about stale gradients: what an optimizer's step becomes under a policy that applies them.

A policy such as ASP applies gradients of parameters that have moved on. Three things make up for that:
- Worker moments. Every worker has a first moment of its own, so that its memory is counted in rounds, as in BSP, and
  contributes memory * moment + gradient: a look ahead over one round (DANA-Slim: Hakimi et al. 2019).
- The secant. A worker's gradients differ from one to the next because the parameters moved in between, so the curvature
  along the way is known, block by block. What a gradient has changed by since then is made up for: to first order it is
  then that of the present parameters (paceline.training.stale.secant).
- A round's second moment. Single gradients are noisier than the mean of a round, so Adam's denominator would be too
  large, by a factor between 1 and the root of the group's size. The factor is measured (paceline.training.stale.noise).
docs/optimizers.md has the formulas and what each part is worth.
"""

from paceline.training.stale.blocks import Partition, blocks_of, partition_of
from paceline.training.stale.correction import Correction
from paceline.training.stale.rules import description_of, refusal

__all__ = ["Correction", "Partition", "blocks_of", "description_of", "partition_of", "refusal"]
