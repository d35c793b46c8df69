NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --train_type full --torch_dtype bfloat16 --max_length 4096 \
  --dataset AI-ModelScope/alpaca-gpt4-data-en --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \
  --learning_rate 1e-5 --deepspeed zero2 --attn_impl flash_attn --output_dir output --num_train_epochs 1
