CONTAINER=nvcr.io/nvidia/nemo:26.04
python scripts/performance/setup_experiment.py --account my_account --partition batch -i ${CONTAINER} \
  -m llama -mr llama3_70b --task pretrain --log_dir results --num_gpus 64 --gpus_per_node 8 -t "00:15:00" \
  -g h100 -c fp8_cs -tp 4 -pp 4 -cp 2 -vp 5 -mb 1 -gb 128 -hf ${HF_TOKEN} dataset.sequence_length=8192
