"""A small configuration of every model family in mlx-lm, as a function of width."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import mlx.nn as nn
import mlx_lm.models

VOCABULARY = 64
HEAD = 16


def common(width: int) -> dict[str, Any]:
    """Values for the names that many configurations share; each takes those it knows."""
    heads = width // HEAD
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-5,
        "norm_eps": 1e-5,
        "layer_norm_eps": 1e-5,
        "layer_norm_epsilon": 1e-5,
        "layernorm_epsilon": 1e-5,
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "use_bias": False,
        "num_experts": 4,
        "num_local_experts": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "num_experts_per_token": 2,
        "moe_topk": 2,
        "n_shared_experts": 1,
        "num_shared_experts": 1,
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": width,
        "moe_shared_expert_intermediate_size": width,
        "shared_intermediate_size": width,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "sliding_window": 32,
        "sliding_window_size": 32,
        "partial_rotary_factor": 0.5,
        "rotary_pct": 0.5,
        "rotary_dim": 8,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "use_qk_norm": True,
        "n_embd": width,
        "n_head": heads,
        "n_layer": 2,
        "n_positions": 64,
        "n_ctx": 64,
        "n_inner": 2 * width,
        "num_heads": heads,
        "num_kv_heads": heads // 2,
        "n_heads": heads,
        "n_layers": 2,
        "n_kv_heads": heads // 2,
        "num_layers": 2,
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "conv_kernel": 4,
        "use_conv_bias": True,
        "conv_bias": False,
        "state_size": 8,
        "time_step_rank": "auto",
        "n_groups": 1,
        "time_step_limit": (0.0, 1.0),
        "ssm_state_size": 8,
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": HEAD,
        "linear_value_head_dim": HEAD,
        "linear_conv_kernel_dim": 4,
        "attention_multiplier": 1 / HEAD,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
        "dim_model_base": width,
        "scale_depth": 1.0,
        "scale_emb": 2.0,
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 8,
        "conv_L_cache": 3,
        "tie_word_embeddings": False,
    }


def special(family: str, width: int) -> dict[str, Any]:
    """What one family needs otherwise."""
    heads = width // HEAD
    mixed = {"layer_types": ["sliding_attention", "full_attention"]}
    rope = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "type": "default"}}
    linear = {"layer_group_size": 2, "group_norm_size": 1}
    convolved = {
        "block_dim": width,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention"],
        "use_expert_bias": True,
        "num_dense_layers": 1,
    }
    mamba = {
        "mamba_n_heads": heads,
        "mamba_d_head": HEAD,
        "mamba_num_heads": heads,
        "mamba_head_dim": HEAD,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_d_ssm": width,
        "mamba_expand": 1,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 8,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
    }
    kda = {
        "kda_layers": [1],
        "full_attn_layers": [2],
        "num_heads": heads,
        "head_dim": HEAD,
        "short_conv_kernel_size": 4,
    }
    gemma3n = {
        **mixed,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 16,
        "rope_local_base_freq": 1e4,
        "final_logit_softcapping": 30.0,
        "activation_sparsity_pattern": [0.0, 0.0],
        "altup_num_inputs": 2,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 8,
    }
    gemma4 = {
        **mixed,
        "num_kv_shared_layers": 0,
        "global_head_dim": HEAD,
        "num_global_key_value_heads": heads // 2,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY,
    }
    longcat = {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "ffn_hidden_size": 2 * width,
        "expert_ffn_hidden_size": width,
        "zero_expert_num": 1,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    }
    llama4 = {
        "num_hidden_layers": 4,
        "attention_chunk_size": 32,
        "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 2 * width,
        "no_rope_layers": [1, 1, 1, 0],
    }
    block = {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 6.0}}
    scaled = {"rope_theta": 1e4, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}
    yarn = {"rope_scaling": {"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 64}}
    table: dict[str, dict[str, Any]] = {
        "afm7": {"hidden_dim": width, "num_kv_reuse_layers": 1, "num_layers": 3, "hidden_dim_scale_factor": 2.0},
        "afmoe": mixed,
        "apertus": {"post_norm": False, "qk_norm": True},
        "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2},
        "bailing_hybrid": linear,
        "bailing_moe_linear": linear,
        "cohere2": {"sliding_window_pattern": 2},
        "gemma3": {"text_config": {"sliding_window_pattern": 2}},
        "gemma3_text": {"sliding_window_pattern": 2},
        "mistral4": {
            "rope_parameters": {
                "rope_theta": 1e4,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 64,
                "factor": 1.0,
                "rope_type": "yarn",
            }
        },
        "dbrx": {
            "d_model": width,
            "ffn_config": {"ffn_hidden_size": width, "moe_num_experts": 4, "moe_top_k": 2},
            "attn_config": {"kv_n_heads": heads // 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        },
        "deepseek_v2": yarn,
        "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2},
        "exaone4": {"sliding_window_pattern": "LG"},
        "exaone_moe": {**mixed, "is_moe_layer": [False, True]},
        "falcon_h1": mamba,
        "gear": mixed,
        "gemma3n": {"text_config": gemma3n},
        "gemma4": {"text_config": gemma4, **gemma4},
        "gemma4_text": gemma4,
        "glm_moe_dsa": rope,
        "gpt_neox": {"rotary_emb_base": 10000},
        "granitemoehybrid": {**mamba, "layer_types": ["mamba", "attention"]},
        "hunyuan": {
            "moe_intermediate_size": width,
            "num_shared_expert": 1,
            "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
            "use_mixed_mlp_moe": True,
            "use_cla": False,
            "cla_share_factor": 2,
        },
        "jamba": {
            **mamba,
            "attn_layer_offset": 1,
            "attn_layer_period": 2,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
        },
        "kimi_k3": {
            "text_config": {
                "linear_attn_config": {**kda, "gate_lower_bound": -5.0},
                "attn_res_block_size": 2,
                "activation_situ_beta": 1.0,
                "activation_situ_linear_beta": 1.0,
                "routed_expert_hidden_size": width,
                "num_expert_group": 1,
            }
        },
        "kimi_linear": {"linear_attn_config": kda, "model_max_length": 64},
        "lfm2": convolved,
        "lfm2-vl": {**convolved, "text_config": convolved},
        "lfm2_moe": convolved,
        "lille-130m": {"block_size": 64, "n_embd": 6 * width, "n_head": 6 * heads, "n_kv_heads": 3 * heads},
        "llama4": {"text_config": {**llama4, "num_experts_per_tok": 1}},
        "llama4_text": llama4,
        "longcat_flash": longcat,
        "longcat_flash_ngram": longcat,
        "mellum": {**mixed, "rope_parameters": {k: {"rope_theta": 1e4} for k in mixed["layer_types"]}},
        "mimo_v2_flash": {
            "hybrid_layer_pattern": [0, 1],
            "moe_layer_freq": [0, 1],
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
            "swa_rope_theta": 1e4,
            "swa_num_attention_heads": heads,
            "swa_num_key_value_heads": heads // 2,
            "swa_head_dim": HEAD,
            "swa_v_head_dim": HEAD,
        },
        "minicpm3": {"rope_scaling": {"long_factor": 1.0, "short_factor": 1.0}},
        "minimax_m3_vl": {
            "text_config": {
                "moe_layer_freq": [0, 1],
                "sparse_attention_freq": [0, 0],
                "dense_intermediate_size": 2 * width,
            }
        },
        "ministral3": {"rope_parameters": scaled},
        "muse_spark": {
            "text_config": {
                **rope,
                "post_norm_eps": 1e-5,
                "layer_rope_theta": [1e4, 1e4],
                **mixed,
                "final_logit_softcapping": 30.0,
                "output_multiplier": 1.0,
                "moe_hidden_size": width,
                "num_shared_experts": 0,
            }
        },
        "nemotron": {"hidden_act": "relu2"},
        "nemotron-nas": {"block_configs": [block, block]},
        "nemotron_h": {**mamba, "num_hidden_layers": 3, "hybrid_override_pattern": ["M", "*", "-"]},
        "olmo3": mixed,
        "olmo_hybrid": {"linear_allow_neg_eigval": False, "layer_types": ["linear_attention", "full_attention"]},
        "openelm": {
            "num_transformer_layers": 2,
            "model_dim": width,
            "ffn_dim_divisor": 16,
            "num_query_heads": [heads, heads],
            "num_kv_heads": [heads // 2, heads // 2],
            "ffn_multipliers": [2.0, 2.0],
        },
        "phi3small": {
            "dense_attention_every_n_layers": 2,
            "ff_intermediate_size": 2 * width,
            "gegelu_limit": 20.0,
        },
        "phixtral": {"num_vocab": VOCABULARY, "model_dim": width},
        "plamo": {"n_shared_head": 2},
        "plamo2": {"hidden_size_per_head": HEAD, "mamba_num_heads": heads, "mamba_d_state": 8},
        "qwen": {"kv_channels": HEAD, "intermediate_size": 4 * width},
        **{key: {"full_attention_interval": 2} for key in ("qwen3_5", "qwen3_5_moe", "qwen3_next")},
        "recurrent_gemma": {
            "conv1d_width": 4,
            "logits_soft_cap": 30.0,
            "attention_window_size": 32,
            "block_types": ["recurrent", "attention"],
        },
        "rwkv7": {"a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim": 8, "decay_low_rank_dim": 8},
        "spark2_5": {**mixed, "rope_parameters": {k: {"rope_theta": 1e4} for k in mixed["layer_types"]}},
        "stablelm": {"use_qkv_bias": False},
        "step3p5": {"num_attention_groups": heads // 2, "moe_num_experts": 4, "moe_top_k": 2, "moe_layers_enum": "1"},
    }
    return table.get(family, {})


def families() -> list[str]:
    """The modules that hold a model class."""
    return [m.name for m in pkgutil.iter_modules(mlx_lm.models.__path__) if m.name not in HELPERS]


# Modules of mlx_lm.models that hold no model, and one that needs a package that cannot be imported without exiting.
HELPERS = (
    "activations", "base", "bitlinear_layers", "cache", "gated_delta", "mla", "pipeline", "rope_utils", "ssm",
    "switch_layers",
)  # fmt: skip


def build(family: str, width: int) -> nn.Module:
    """One small model of a family at a width."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    config = {**common(width), "model_type": family, **special(family, width)}
    inner = {**config, **special(family, width).get("text_config", {})}
    return module.Model(module.ModelArgs.from_dict({**config, "text_config": inner}))
