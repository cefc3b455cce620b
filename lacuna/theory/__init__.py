"""The theory of position bias, on numpy and scipy alone. docs/theory.md explains it.

[S] "A Structural Theory of Position Bias in Transformers", arXiv 2602.16837
[B] "Lost in the Middle at Birth: An Exact Theory of Transformer Position Bias", arXiv 2603.10123
[W] "On the Emergence of Position Bias in Transformers", arXiv 2502.01951
[A] "Train Short, Test Long: Attention with Linear Biases", arXiv 2108.12409

| symbol | function | equation | source |
|---|---|---|---|
| A_t, M | `kernels.uniform` | A[i, j] = 1/(i+1), j <= i | [B], [S] |
| A_t^h | `kernels.alibi` | softmax_j of -s_h (i-j) + d_h [i=j] | [S], [A] |
| A_t^h | `kernels.distance` | softmax_j of b(i-j) + sink [j=0] | [S] (Toeplitz logits) |
| A_t | `kernels.measured` | mean attention over documents | [S], general definition |
| s_h | `kernels.standard_slopes`, `geometric_slopes` | 2^(-8 (h+1)/H), interleaved or not | [A] |
| p, P | `rollout.rollout` | e_{n-1}^T prod ((1 - lambda_t) I + lambda_t A_t) | [S], [W] |
| lambda_t | `rollout.constant`, `power_law` | lambda; lambda_0 (t+1)^-beta | [S] |
| - | `rollout.forces` | p after mask, residual, position, content | [S] |
| delta_t | `Kernel.off_diagonal_mass` | max_i (1 - A_t[i, i]) | [S] |
| - | `rollout.collapse` | sum_t lambda_t delta_t finite or not | [S]; [W] |
| - | `rollout.monotone_violation` | sum_{k<=j} A[i+1, k] <= sum_{k<=j} A[i, k] | [S], assumption |
| N^H | `cesaro.finite` | last row of ((1-a) I + a M)^H | [B] |
| rho(p) | `cesaro.density` | a (1-a)^(H-1) L^(1)_{H-1}(-a ln(1/p)/(1-a)), atom (1-a)^H | [B] |
| p* | `cesaro.dead_zone_boundary` | exp(-(tau (H-1)!)^(1/(H-1))) for a = 1 | [B] |
| - | `cesaro.decompose` | primacy tail, dead zone, recency delta | [B] |
| - | `cesaro.width_by_depth` | 1 - p* for each H | [B] |
| S | `second_moment.second_moment` | S <- S + D (sum_h g_h^2 A_h^T S A_h) D | ours |
| S | `second_moment_architecture.from_architecture` | the same from parameters alone | ours |
| W1, r_s | `agreement.wasserstein`, `spearman` | W1 / (n-1); rank correlation | [S], [B] |
| - | `lacuna.evidence.aggregates` | means over documents: of norms, shares, squares | [S], [B] |
| - | `shape.dead_zone`, `shape.shape` | smoothed density below tau; masses of the ends | ours |
| v_i | `lacuna.placement.search.best_order` | maximise sum_i r_i v_i over orders | ours |

Conventions: tokens are 0..n-1, and the prompt is read at token n-1. A[i, j] is what token i draws
from token j. Layer 0 is nearest the embeddings. Curves sum to 1, and a density of 1 is uniform.
"""
