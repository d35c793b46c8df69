"""The shape of a decoder-only transformer, and what follows from the shape alone: parameter counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """One model shape; names follow Megatron-LM. Zero experts = dense."""

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int  # of dense layers
    num_attention_heads: int
    num_query_groups: int  # KV heads
    vocab_size: int
    head_dim: int  # Megatron's kv_channels
    gated_mlp: bool = True
    tied_embeddings: bool = False
    position_embedding: str = "rope"  # rope | learned | alibi
    max_position_embeddings: int = 0  # rows of a learned table
    rmsnorm: bool = True
    dropout: bool = False  # dropout masks are kept for the backward pass
    linear_bias: bool = False  # biases on attention and MLP projections
    qkv_bias: bool = False  # biases on q, k, v only (Qwen2)
    qk_norm: bool = False
    embedding_size: int = 0  # width of the word embedding where it differs from hidden_size (OPT-350M), else 0
    num_experts: int = 0
    moe_router_topk: int = 0
    moe_ffn_hidden_size: int = 0
    num_shared_experts: int = 0
    num_dense_layers: int = 0  # leading dense layers of an MoE model (DeepSeek)
    # multi-head latent attention (DeepSeek-V2/V3); kv_lora_rank = 0 means ordinary attention
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def num_moe_layers(self) -> int:
        return self.num_layers - self.num_dense_layers if self.is_moe else 0

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections, without biases and norms."""
        h, a = self.hidden_size, self.num_attention_heads
        if self.kv_lora_rank:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            q = h * self.q_lora_rank + self.q_lora_rank * a * qk if self.q_lora_rank else h * a * qk
            kv = h * (self.kv_lora_rank + self.qk_rope_head_dim)
            kv += self.kv_lora_rank * a * (self.qk_nope_head_dim + self.v_head_dim)
            return q + kv + a * self.v_head_dim * h
        return h * self.head_dim * (2 * a + 2 * self.num_query_groups)

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights of one dense layer's MLP, without biases."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_hidden_size

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert, without biases."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.moe_ffn_hidden_size
