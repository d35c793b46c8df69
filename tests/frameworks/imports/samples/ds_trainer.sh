export MODEL=meta-llama/Meta-Llama-3-8B
deepspeed --num_gpus 8 --num_nodes 2 run_clm.py \
  --model_name_or_path $MODEL --bf16 True --block_size 4096 --per_device_train_batch_size 2 \
  --gradient_accumulation_steps 4 --gradient_checkpointing True --learning_rate 2e-5 --deepspeed ds_auto.json
