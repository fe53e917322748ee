#!/usr/bin/env bash
# Trains the small model of a family on real data, the runs of bench/results, and scores it.
#   LONGSPAN_DATA=DIR bench/learning.sh FAMILY [OUT]     into OUT, runs/learning/FAMILY without it
#   bench/learning.sh --list                             the families
# Each run has a fixed number of steps and a seed, so that its figures depend neither on the load of
# the machine nor on the number of threads. One that was stopped goes on from its last checkpoint.
set -euo pipefail
cd "$(dirname "$0")/.."

longspan=${LONGSPAN:-build/dev/longspan}
case "${1:-}" in
  --list) sed -n 's/^  \([a-z0-9_| -]*\)) # /\1: /p' "$0"; exit 0 ;;
  "" | -* ) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 1 ;;
esac
family=$1
out=${2:-runs/learning/$family}
run=(--model "${family%%-*}" --seed 1 --log-every 50 --save-every 200 --keep 1)

# train_to STEP OPTION...: a stage of the run. What the run has behind it is left out.
train_to() {
  local newest step=$1
  shift
  newest=$(find "$out" -maxdepth 2 -path '*/checkpoints/step-*' 2>/dev/null | sed 's/.*step-//' |
    sort -n | tail -n 1 || true)
  if [ "${newest:-0}" -lt "$step" ]; then
    "$longspan" train "${run[@]}" --resume --out "$out" --steps "$step" "$@"
  fi
}

# double_to LENGTH STEPS: masked models with tables of positions begin with 16 tokens, 2,048 in a
# batch, and double the length. Where every row sees hundreds of keys from the start, the share of a
# neighbour in the gradient is too small to be found for thousands of steps, and the loss stays near
# the entropy of a byte; twice the length is a small step from where neighbours are known.
double_to() {
  local last=$1 steps=$2 length=16 step=300
  while [ "$length" -lt "$last" ]; do
    train_to "$step" --length "$length" --batch $((2048 / length)) --set schedule.name=constant \
      --set model.position_init=sinusoid
    length=$((2 * length))
    step=$((step + 150))
  done
  train_to "$steps" --length "$last" --batch $((2048 / last)) --set schedule.name=cosine
}
score() { "$longspan" eval --out "$out" --part "$@"; }

# proteins_of FAMILY: the same model for all three kinds of attention.
proteins_of() {
  run+=(--set model.d_ff=256 --set model.emb_scale=true --set model.embed_std=0.02)
  case "$1" in
    performer-*-relu) ;;
    performer-*) run+=(--set model.features=positive --set model.feature_epsilon=0 --set model.redraw_interval=1000) ;;
  esac
}

# densities_to STEP: a run of the kind of probabilities in the family's name, and which keys its heads use at its ends.
densities_to() {
  local step
  case "$family" in
    *-entmax) run+=(--set model.alpha=1.5) ;;
    *-learned) run+=(--set model.learn_alpha=true) ;;
  esac
  for step in 1 "$1"; do
    train_to "$step"
    { echo "step $step"; "$longspan" draw --out "$out" 2>&1 | grep "^keys that" || echo "all keys"; } >>"$out/density.txt"
  done
}

# recall: documents that begin with a label and end with a question for it, in segments of 64. They
# grow from 128 tokens to 512. What a label's segment passes on was computed without gradient, so
# that how it is read must have been learned from labels that are in sight.
recall() {
  local document last=0
  run+=(--task recall --set recall.documents=1 --length 64 --batch 16 --layers 2 --lr 2e-3)
  run+=(--set model.d_model=64 --set model.d_ff=128 --set model.init_std=0.1 --threads 1)
  run+=(--set model.embed_std=0.125 --set optimizer.clip=1)
  for document in 128 256 384; do
    last=$((last + 1000))
    train_to "$last" --set "recall.document=$document" --set schedule.name=constant --other-data
  done
  train_to 10000 --set recall.document=512 --set schedule.name=cosine --other-data
  score test
}

# compare_compressions STEPS DIR: a line for each function of compression and each seed.
compare_compressions() {
  local steps=$1 dir=$2 run_of what seed valid test options
  for run_of in {conv,mean,max}-1 {conv,mean,max}-2 {conv,mean,max}-3; do
    what=${run_of%-*} seed=${run_of#*-} out=$dir/$run_of
    case "$what" in
      conv) options=(--set model.compression=conv --set model.loss=attention) ;;
      *) options=(--set "model.compression=$what" --set model.loss=none) ;;
    esac
    train_to "$steps" --seed "$seed" "${options[@]}" >&2
    score test >&2
    valid=$(sed 's/.*"valid_bpb":\([0-9.]*\).*/\1/' "$out/summary.json")
    test=$(tail -n 1 "$out/evals.jsonl" | sed 's/.*"test_bpb":\([0-9.]*\).*/\1/')
    echo "{\"compression\":\"$what\",\"seed\":$seed,\"steps\":$steps,\"valid_bpb\":$valid,\"test_bpb\":$test}"
  done
}

# compare_heads STEPS DIR: a line for routing heads beside local ones, and for as many parameters with
# local heads alone, for each seed. Centroids are parameters too: routing gets a narrower inner layer.
compare_heads() {
  local steps=$1 dir=$2 run_of what seed parameters valid test options
  for run_of in {routing,local}-1 {routing,local}-2 {routing,local}-3; do
    what=${run_of%-*} seed=${run_of#*-} out=$dir/$run_of
    case "$what" in
      routing) options=(--set model.centroid_init=data --set model.select=argmax_recent --set model.d_ff=261) ;;
      local) options=(--set model.routing_layers=0) ;;
    esac
    train_to "$steps" --seed "$seed" "${options[@]}" >&2
    score test >&2
    parameters=$(sed 's/.*"parameters":\([0-9]*\).*/\1/' "$out/summary.json")
    valid=$(sed 's/.*"valid_bpb":\([0-9.]*\).*/\1/' "$out/summary.json")
    test=$(tail -n 1 "$out/evals.jsonl" | sed 's/.*"test_bpb":\([0-9.]*\).*/\1/')
    echo "{\"heads\":\"$what\",\"seed\":$seed,\"steps\":$steps,\"parameters\":$parameters,\"valid_bpb\":$valid,\"test_bpb\":$test}"
  done
}

# compare_windows STEPS DIR: a line for each arrangement of windows over four layers, which together
# see as many keys, and for dilated ones, over two seeds.
compare_windows() {
  local steps=$1 dir=$2 seed kind windows dilation common=("${run[@]}")
  for seed in 1 2; do
    for kind in rising equal falling rising-dilated equal-dilated; do
      out=$dir/$kind-$seed
      case "$kind" in
        rising*) windows='[8,16,32,64]' ;;
        equal*) windows='[30]' ;;
        falling) windows='[64,32,16,8]' ;;
      esac
      case "$kind" in
        *-dilated) dilation='[1,1,2,2]' ;;  # of two heads of four
        *) dilation='[1]' ;;
      esac
      run=("${common[@]}" --seed "$seed" --set "model.window=$windows" --set "model.dilation=$dilation")
      train_to "$steps" >&2
      score test >&2
      echo "{\"windows\":$windows,\"dilation\":$dilation,\"seed\":$seed,\"steps\":$steps,$(
        sed 's/.*\("valid_bpb":[0-9.]*\).*/\1/' "$out/summary.json"),$(
        tail -n 1 "$out/evals.jsonl" | sed 's/.*\("test_bpb":[0-9.]*\).*/\1/')}"
    done
  done
}

# compare_projections DIR: a line for each way to project keys and values, and for full attention, of
# two layers of 64 over 64 bytes; 16 rows unless the name says how many.
compare_projections() {
  local dir=$1 kind options common=("${run[@]}") length step
  for kind in dense headwise kv layerwise none rows-4 rows-64 conv mean frozen; do
    out=$dir/$kind
    case "$kind" in
      dense) options=(--model blockbert --set model.n_block=1 --set 'model.heads_per_shift=[4]') ;;
      rows-*) options=(--set "model.r=[${kind#rows-}]") ;;
      mean | conv) options=(--set "model.projection=$kind") ;;
      frozen) options=(--set model.freeze_projection=true) ;;
      *) options=(--set "model.sharing=$kind") ;;
    esac
    if [[ "$kind" != dense && "$kind" != rows-* ]]; then options+=(--set 'model.r=[16]'); fi
    run=("${common[@]}" --layers 2 --set model.d_model=64 --set model.d_ff=256 --set model.n_max=64)
    run+=(--set eval_every=0 "${options[@]}")
    length=16
    for step in 150 250 500; do
      train_to "$step" --length "$length" --batch $((1024 / length)) --set model.position_init=sinusoid \
        --set "schedule.name=$([ "$length" = 64 ] && echo cosine || echo constant)" >&2
      length=$((2 * length))
    done
    echo "{\"projection\":\"$kind\",$(grep -o '"parameters":[0-9]*,"steps":[0-9]*' "$out/summary.json"),$(
      grep -o '"valid_bpb":[0-9.]*' "$out/summary.json")}"
  done
}

# means DIR: the last step of every 50, and the mean of the bits per byte of those steps.
means() {
  sed -n 's/^{"step":\([0-9]*\),"loss":.*"bpb":\([0-9.]*\),.*/\1 \2/p' "$1/metrics.jsonl" |
    awk '{ sum += $2 } $1 % 50 == 0 { printf "%d %.4f\n", $1, sum / 50; sum = 0 }'
}

# pieces: encoder-decoders read and write 4,000 byte pairs of the articles. 3.7 bytes each: a summary
# is a fourth as many tokens as in bytes, and a source of 512 holds 1,900 bytes.
pieces() {
  run+=(--model "${family%%-*}:summaries" --task wiki-leads --batch 1 --tokenizer "$out.model")
  [ -e "$out.model" ] && return
  mkdir -p "$(dirname "$out")"
  "$longspan" tokens train --task wiki-leads --kind bpe --vocabulary 4000 --symbols '[MASK]' \
    --out "$out.model"
}

# sentences: articles as sentences of up to 50 of 4,000 byte pairs.
sentences() {
  run+=(--task wiki-leads --tokenizer "$out.model" --set model.vocab=4004 --threads 1)
  run+=(--set model.sentence_length=51 --set model.dropout=0.1)
  [ -e "$out.model" ] && return
  mkdir -p "$(dirname "$out")"
  "$longspan" tokens train --task wiki-leads --kind bpe --vocabulary 4000 --out "$out.model" >&2
}

# compare_labels DIR: a line for each kind of start, learning rate and seed, all with 200 labelled documents.
compare_labels() {
  local dir=$1 start seed lr options common=("${run[@]}" --threads 1 --set model.vocab=64)
  for seed in 1 2 3; do
    for start in topic-docs topic-labels; do
      run=("${common[@]}" --model hibert --seed "$seed" --task "$start")
      out=$dir/$start-$seed train_to 2000 >&2
    done
    for lr in 5e-4 1e-3; do
      for start in none topic-docs topic-labels; do
        options=(--model hibert:labels --task topic-labels --documents 200 --seed "$seed" --lr "$lr")
        if [ "$start" != none ]; then options+=(--from "$dir/$start-$seed"); fi
        run=("${common[@]}" "${options[@]}")
        out=$dir/labels-$start-$seed-$lr
        train_to 200 >&2
        score valid >&2
        echo "{\"pre_trained\":\"$start\",\"lr\":$lr,\"seed\":$seed,$(tail -n 1 "$out/evals.jsonl" |
          grep -o '"valid_bpb":[0-9.]*,"valid_accuracy":[0-9.]*,"valid_f1":[0-9.]*')}"
      done
    done
  done
}

# summaries: first the sentences left out of articles, then their summaries from there.
summaries() {
  pieces
  run+=(--set model.dropout=0.1)
  out="$out-gaps" train_to 1500 --gap-sentences 0.3
  run+=(--from "$out-gaps" --lr 5e-4 --set model.label_smoothing=0.1 --target-length 1280)
  train_to 1000
}
paper=(--beams 5 --length-divisor wu2016 --length-penalty 0.8 --no-repeat-ngram 3)

case "$family" in
  blockbert) # masked bytes
    run+=(--task wikixml)
    double_to 512 1500
    score test ;;
  blockbert-dense) # the same steps with full attention
    run+=(--task wikixml --set model.n_block=1 --set 'model.heads_per_shift=[4]')
    double_to 512 1500
    score test ;;
  blockbert-sparse) # the same steps with fixed factorised attention (SparseBERT)
    run+=(--task wikixml --set model.pattern=fixed)
    double_to 512 1500
    score test ;;
  bigbird) # masked bytes
    run+=(--task wikixml)
    double_to 1024 2000
    score test ;;
  bp_transformer) # next bytes
    run+=(--task tinyshakespeare --threads 1)
    train_to 1500
    score valid ;;
  bp_transformer-512) # the same bytes in longer samples, 4 neighbours on each level
    run+=(--task tinyshakespeare --threads 1 --set model.k=4)
    train_to 1500 --length 512 --batch 2
    score valid ;;
  bp_transformer-dense) # as the first, with so many neighbours that every byte sees all before it
    run+=(--task tinyshakespeare --threads 1 --set model.k=127)
    train_to 1500
    score valid ;;
  linformer) # masked bytes
    run+=(--task tinyshakespeare --threads 1)
    double_to 512 1200
    score valid ;;
  linformer-conv) # the same steps with convolutions, whose weights are those of all windows
    run+=(--task tinyshakespeare --threads 1 --set model.projection=conv)
    double_to 512 1200
    score valid ;;
  linformer-projections) # masked bytes: sharing, rows and kinds of projections in small
    run+=(--task tinyshakespeare --threads 1)
    mkdir -p "$out"
    compare_projections "$out/runs" | tee "$out/projections.jsonl" ;;
  linformer-dense) # the same steps with full attention, which BlockBERT has with one block
    run+=(--model blockbert --task tinyshakespeare --threads 1)
    run+=(--set model.n_block=1 --set 'model.heads_per_shift=[4]')
    double_to 512 1200
    score valid ;;
  longformer) # masked bytes
    run+=(--task wikixml)
    double_to 1024 2000
    score test ;;
  longformer_lm) # next bytes; length and windows double
    run+=(--task wikixml --lr 3e-3)
    train_to 4000 --length 256 --batch 4
    train_to 6000 --length 512 --batch 2 --set 'model.window=[32,32,64,128]'
    score test ;;
  longformer_lm-windows) # windows that rise, are equal or fall by layer, with and without dilation: windows.jsonl
    mkdir -p "$out"
    run+=(--task wikixml --lr 3e-3 --length 256 --batch 4 --threads 1)
    compare_windows 1500 "$out" | tee "$out/windows.jsonl" ;;
  longformer_lm-dna) # next bases
    run+=(--task genomes)
    train_to 2500 --length 256 --batch 8
    score test ;;
  bigbird-dna) # masked bases
    run+=(--task genomes)
    double_to 1024 1500
    score test ;;
  bigbird-motifs) # pairs of motifs, then such with a wrong base in each
    run+=(--model bigbird:motif --task motif-dna)
    train_to 600
    score test
    train_to 1200 --set motifs.mismatches=1 --other-data
    score test ;;
  sparse_transformer) # next bytes, scored again with more and more bytes before each
    run+=(--task wikixml)
    train_to 6000
    score test
    for stride in 512 256 64; do
      "$longspan" eval --out "$out" --part test --stride "$stride" 2>&1 | tee -a "$out/strides.txt"
    done ;;
  sparse_transformer-strided) # the same steps with strided attention
    run+=(--task wikixml --set 'model.index_sets=local,strided')
    train_to 6000
    score test ;;
  sparse_transformer-images-fixed) # as the next, with fixed attention
    run+=(--model sparse_transformer:small_images --task photo-crops-32)
    run+=(--set 'model.index_sets=block,summary')
    train_to 3600
    score test ;;
  sparse_transformer-images) # next value of a pixel
    run+=(--model sparse_transformer:small_images --task photo-crops-32)
    train_to 3600
    score test ;;
  sparse_transformer-audio) # next sample
    run+=(--model sparse_transformer:small_audio --task spoken-digits)
    train_to 4500
    score test ;;
  reformer) # next bytes
    run+=(--task wikixml)
    train_to 4500
    score test ;;
  reformer-duplication) # 0 w 0 w with four rounds of hashing, scored with more and fewer
    run+=(--model reformer:duplication_small --task duplicate)
    train_to 600
    for rounds in 1 2 4 8; do
      echo "rounds $rounds" | tee -a "$out/rounds.txt"
      score test --set "model.rounds=$rounds" 2>&1 | tee -a "$out/rounds.txt"
    done ;;
  reformer-duplication-full) # the same, each token seeing all before it
    run+=(--model reformer:duplication_small --task duplicate --set model.chunk=128)
    run+=(--set model.rounds=1 --set 'model.buckets=[2]' --set model.same_bucket=false)
    train_to 600
    score test ;;
  transformer_xl) # next bytes, scored with memories of 0 to 512 rows
    run+=(--task wikixml --batch 4 --lr 2e-3 --threads 1)
    train_to 12000
    score test
    for rows in 0 128 256 512; do
      score test --set "model.mem_len=$rows" --set model.clamp=205 2>&1 | tee -a "$out/memories.txt"
    done ;;
  expire_span) # next bytes
    run+=(--task wikixml --batch 4 --lr 2e-3 --threads 1)
    train_to 12000
    score test ;;
  expire_span-corridor) # marks, recalled after 501 to 1,000 steps of noise: a driver of its own
    mkdir -p "$out"
    "$(dirname "$longspan")/examples/expire_span_corridor" | tee "$out/corridor.txt" ;;
  expire_span-collision-32 | expire_span-collision-128 | expire_span-collision-512) # where particles met last, with spans up to so many tokens
    run+=(--task collision --set collision.grid=4 --set collision.colours=1)
    run+=(--set collision.speed=1 --set collision.steps=512 --length 64 --batch 16 --layers 2)
    run+=(--lr 2e-3 --threads 1 --set model.d_model=64 --set model.d_ff=256)
    run+=(--set model.positions=64 --set model.max_memory=256 --set model.span_ramp=8)
    run+=(--set "model.span_max=${family##*-}")
    run+=(--set "model.span_init=$(awk -v most="${family##*-}" 'BEGIN { print 16 / most }')")
    train_to 4500
    score test ;;
  transformer_xl-corridor | transformer_xl-corridor-short) # the same marks with the newest 1,000 and 86 rows
    run+=(--task corridor --set corridor.length=2048 --set corridor.nearest=501)
    run+=(--set corridor.distance=1000 --length 128 --batch 32 --layers 1 --lr 3e-3 --threads 1)
    run+=(--set schedule.warmup=10 --set optimizer.clip=0.3 --set model.d_model=64)
    run+=(--set model.d_ff=128 --set model.norm=pre --set model.tie_embedding=false)
    run+=(--set model.emb_scale=false --set model.embed_std=1 --set model.init_std=0.07)
    if [ "$family" = transformer_xl-corridor ]; then run+=(--set model.mem_len=1000); fi
    if [ "$family" = transformer_xl-corridor-short ]; then run+=(--set model.mem_len=86); fi
    train_to 640
    score test ;;
  transformer_xl-period) # symbols that repeat after 96, in segments of 32
    run+=(--task period --set period.length=384 --set period.period=96 --length 32 --batch 8)
    run+=(--lr 2e-3 --layers 2 --set optimizer.clip=1 --set model.init_std=0.1 --threads 1)
    run+=(--set model.embed_std=0.09 --set model.mem_len=96)
    train_to 3000
    score test ;;
  transformer_xl-period-short) # the same with a memory of one row: 64 tokens in reach
    run+=(--task period --set period.length=384 --set period.period=96 --length 32 --batch 8)
    run+=(--lr 2e-3 --layers 2 --set optimizer.clip=1 --set model.init_std=0.1 --threads 1)
    run+=(--set model.embed_std=0.09 --set model.mem_len=1)
    train_to 3000
    score test ;;
  compressive) # next bytes, scored with compressed memories of 16 to 256 rows
    run+=(--task wikixml --batch 4 --lr 2e-3 --threads 1)
    train_to 6000
    train_to 10000 --rewarm
    score test
    for rows in 16 64 256; do
      score test --set "model.compressed_len=$rows" 2>&1 | tee -a "$out/memories.txt"
    done ;;
  compressive-compressions) # convolution, mean and max over three seeds: compressions.jsonl
    mkdir -p "$out"
    run+=(--task wikixml --batch 4 --lr 2e-3 --threads 1)
    compare_compressions 1500 "$out" > "$out/compressions.jsonl" ;;
  compressive-frozen) # a rate that stays, and one of 0 from step 1,000 on: frozen.jsonl, frozen.png
    run+=(--task wikixml --batch 4 --lr 2e-3 --threads 1 --set schedule.name=constant --log-every 1)
    train_to 1000
    [ -e "$out-frozen" ] || cp -r "$out" "$out-frozen"
    train_to 1500
    out="$out-frozen" train_to 1500 --lr 0
    paste -d ' ' <(means "$out") <(means "$out-frozen") |
      awk '{ print "{\"step\":" $1 ",\"bpb\":" $2 ",\"frozen_bpb\":" $4 "}" }' > "$out/frozen.jsonl"
    curve() { sed "s/.*\"$1\":\([0-9.]*\).*/\1/" "$out/frozen.jsonl" | paste -s -d , -; }
    series() {
      echo "{\"name\": \"$1\", \"x\": [$(curve step)], \"y\": [$(curve "$2")]}"
    }
    echo "{\"path\": \"$out/frozen.png\", \"title\": \"training loss, means of 50 steps\"," \
      "\"x_label\": \"step\", \"y_label\": \"bits per byte\", \"series\": [" \
      "$(series 'rate 0 from step 1,000 on' frozen_bpb), $(series 'the rate stays' bpb)]}" |
      "$(dirname "$longspan")/bench/bench_plot" ;;
  compressive-recall) # a label 511 tokens back, two layers with 64 fine and 64 compressed rows
    run+=(--set model.segment=64 --set model.mem_len=64 --set model.compressed_len=64)
    recall ;;
  transformer_xl-recall) # the same with 128 rows of memory: 319 tokens in reach
    run+=(--set model.mem_len=128)
    recall ;;
  adaptive_span) # next bytes
    run+=(--task wikixml --batch 4 --lr 2e-3 --threads 1)
    train_to 20000
    score test ;;
  adaptive_span-lookup | adaptive_span-lookup-by-head) # symbols 3 back, at markers 200; z of tokens, heads
    run+=(--task lookup --set lookup.length=512 --length 128 --batch 8 --layers 2 --lr 2e-3)
    run+=(--set model.span_max=256 --set model.span_init=0.8 --set model.span_penalty=2e-5)
    if [ "$family" = adaptive_span-lookup ]; then run+=(--set model.dynamic=true); fi
    run+=(--threads 1)
    train_to 1500
    score test ;;
  transformer_xl-novel | adaptive_span-novel | expire_span-novel | compressive-novel) # next bytes of a long book
    run+=(--task war-and-peace --batch 4 --lr 2e-3 --threads 1)
    train_to 6000
    score test ;;
  transformer-retrieval | transformer-retrieval-entmax | transformer-retrieval-learned) # one key of all earlier tokens; keys that count
    run+=(--task retrieval --length 128 --batch 32 --layers 2 --lr 3e-3 --set model.d_model=64 --set model.d_ff=128)
    run+=(--set retrieval.questions=8)
    run+=(--set model.positions=sinusoid --set model.init_std=0.1 --set model.embed_std=1 --set eval_every=0 --threads 1)
    densities_to 700
    score test ;;
  routing | routing-nearest | routing-local) # next bytes by recent members, by the nearest tokens, by local heads alone
    run+=(--model routing:small --task wikixml --threads 1 --eval-every 500)
    case "$family" in
      routing) run+=(--set model.centroid_init=data --set model.select=argmax_recent) ;;
      routing-nearest) run+=(--set model.centroid_init=data) ;;
      routing-local) run+=(--set model.routing_layers=0) ;;
    esac
    train_to 2000
    score test ;;
  routing-seeds) # routing and local heads with as many parameters, over three seeds: heads.jsonl
    mkdir -p "$out"
    run+=(--model routing:small --task wikixml --threads 1 --eval-every 500)
    compare_heads 2000 "$out" | tee "$out/heads.jsonl" ;;
  transformer-queries | performer-queries) # 4 values by their keys
    run+=(--task multi-query-recall --length 64 --batch 256 --layers 2 --lr 2e-3 --set model.vocab=64 --threads 1)
    run+=(--set model.d_model=64 --set model.d_ff=128 --set eval_every=0)
    train_to 500
    score test ;;
  transformer-text | transformer-text-entmax | transformer-text-learned) # next bytes, with each kind of probabilities
    run+=(--task wikixml --length 256 --batch 8 --lr 2e-3 --set model.d_ff=256 --threads 1 --set eval_every=0)
    run+=(--set model.positions=sinusoid --set model.emb_scale=true --set model.embed_std=0.02)
    densities_to 1500
    score test ;;
  transformer-stride) # next bytes, scored in segments and in windows that overlap more and more: evals.jsonl
    run+=(--task wikixml --length 256 --batch 8 --lr 2e-3 --set model.d_ff=256 --threads 1 --set eval_every=0)
    run+=(--set model.positions=sinusoid --set model.emb_scale=true --set model.embed_std=0.02)
    train_to 1500
    score test
    for stride in 128 64 32 16; do score test --stride "$stride"; done ;;
  transformer-sort | transformer-sort-entmax | transformer-sort-learned) # 32 symbols, then the same in ascending order
    run+=(--task sort --length 64 --batch 32 --layers 2 --lr 3e-3 --set model.d_model=64 --set model.d_ff=128)
    run+=(--set model.vocab=32 --set model.positions=sinusoid --set model.init_std=0.1 --set model.embed_std=1)
    run+=(--set eval_every=0 --threads 1)
    densities_to 1500
    score test ;;
  transformer-corridor | transformer-corridor-entmax | transformer-corridor-learned) # a mark 20 to 100 back; keys that count
    run+=(--task corridor --set corridor.length=256 --set corridor.nearest=20 --set corridor.distance=100)
    run+=(--length 256 --batch 16 --layers 2 --lr 2e-3 --set model.d_model=64 --set model.d_ff=128 --threads 1)
    run+=(--set model.positions=sinusoid --set model.init_std=0.1 --set eval_every=0)
    densities_to 1000
    score test ;;
  performer-1024 | transformer-1024 | reformer-1024) # next bytes of 1,024
    run+=(--task wikixml --length 1024 --batch 2 --lr 2e-3 --threads 1 --set model.d_ff=256)
    if [ "$family" = transformer-1024 ]; then
      run+=(--set model.positions=sinusoid --set model.emb_scale=true --set model.embed_std=0.02)
    fi
    train_to 300
    score test
    if [ "$family" = performer-1024 ]; then
      "$longspan" draw --out "$out" 2>&1 | grep "^features of" | tee "$out/features.txt"
    fi ;;
  performer-hidden | performer-hidden-relu | transformer-hidden) # hidden residues of proteins
    run+=(--task proteins --length 512 --batch 4 --lr 2e-3 --threads 1 --set optimizer.clip=0.5)
    case "$family" in
      performer-*) run+=(--model performer:proteins) ;;
      transformer-*) run+=(--model transformer:encoder --set model.positions=sinusoid --set model.vocab=27) ;;
    esac
    proteins_of "$family"
    train_to 800
    score test ;;
  performer-residues | performer-residues-relu | transformer-residues) # next residues of proteins
    run+=(--task proteins --length 512 --batch 4 --lr 2e-3 --threads 1 --set optimizer.clip=0.5)
    case "$family" in
      performer-*) run+=(--model performer:proteins_next) ;;
      transformer-*) run+=(--set model.positions=sinusoid --set model.vocab=27) ;;
    esac
    proteins_of "$family"
    train_to 1000
    score test ;;
  etc) # masked bytes
    run+=(--task tinyshakespeare)
    train_to 500
    score valid ;;
  led-overfit | bigbird_pegasus-overfit) # eight articles and their summaries by heart
    pieces
    run+=(--documents 8 --target-length 1280)
    if [ "$family" = led-overfit ]; then train_to 600; else train_to 900; fi
    score train --beams 1
    score test ;;
  led) # sentences left out of articles, then summaries
    summaries
    score valid --no-repeat-ngram 3
    score test --no-repeat-ngram 3 ;;
  hibert-topics) # hidden sentences of documents on a topic; labels of 200 with and without that
    compare_labels "$out" | tee "$out.jsonl" ;;
  hibert-overfit) # eight articles and their extracts by heart
    sentences
    run+=(--model hibert:labels --documents 8 --batch 8 --set model.dropout=0)
    train_to 400 --lr 1e-3
    score train
    score test ;;
  hibert) # hidden sentences of articles, then which of them are nearest to their leads
    sentences
    out="$out-masked" train_to 1500 --model hibert
    run+=(--model hibert:labels --from "$out-masked" --batch 8)
    train_to 400
    score valid
    score test ;;
  hibert-scratch) # the same labels without the masked sentences
    sentences
    run+=(--model hibert:labels --batch 8)
    train_to 400
    score valid
    score test ;;
  bigbird_pegasus) # the same, written as the paper does
    summaries
    score valid "${paper[@]}"
    score test "${paper[@]}" ;;
  *)
    echo "unknown family $family; bench/learning.sh --list shows them" >&2
    exit 1 ;;
esac
