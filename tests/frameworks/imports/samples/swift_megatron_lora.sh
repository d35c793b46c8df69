# LoRA by ms-swift over Megatron, on one node
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
NPROC_PER_NODE=8 \
megatron sft \
    --model Qwen/Qwen3-8B --tuner_type lora --lora_rank 16 --lora_alpha 32 --target_modules all-linear \
    --dataset 'swift/self-cognition#500' --load_safetensors true --save_safetensors true --torch_dtype bfloat16 \
    --tensor_model_parallel_size 2 --sequence_parallel true --micro_batch_size 4 --global_batch_size 64 \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --packing true \
    --finetune true --cross_entropy_loss_fusion true --lr 1e-4 --lr_warmup_fraction 0.05 --max_epochs 1 \
    --save output/qwen3 --save_interval 100 --max_length 8192 --num_workers 4 --no_save_optim true
