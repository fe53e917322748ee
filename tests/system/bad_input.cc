// The errors of the program on bad input, as one table. In each case the program must end with a
// non-zero status. Standard error must say what is wrong, what was given, what was expected and
// what to do. Nothing may be half-written, and the earlier checkpoint must be unchanged.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "tests/system/program.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// Holds the paths that a case may use.
struct TestPaths {
  std::string root;   ///< a folder of the case's own
  std::string text;   ///< 20,000 bytes of text
  std::string run;    ///< a finished run of a small model with two checkpoints
  std::string fresh;  ///< a run folder that does not exist yet
  std::string newest() const { return newest_checkpoint(run); }
};

void replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

struct BadInputCase {
  std::string name;
  std::function<Words(const TestPaths&)> arguments;
  Words says;  ///< each must occur in standard error
  std::function<void(const TestPaths&)> prepare = {};
  int64_t file_limit = -1;
};

Words short_training(const std::string& text, const std::string& out, int steps,
                     const Words& more = {}) {
  return small_training(text, out, joined({"--steps", std::to_string(steps)}, more));
}

/// Replaces ROOT and RUN in arguments by the paths of the case.
std::function<Words(const TestPaths&)> replaced(Words w) {
  return [w](const TestPaths& p) {
    Words all = w;
    for (std::string& word : all) {
      replace(word, "ROOT", p.root);
      replace(word, "RUN", p.run);
    }
    return all;
  };
}

/// Returns a short training run into a fresh folder, with additional arguments that are usually
/// wrong.
std::function<Words(const TestPaths&)> train(Words more) {
  return
      [more](const TestPaths& p) { return short_training(p.text, p.fresh, 3, replaced(more)(p)); };
}

/// Resumes the finished run for one more step.
std::function<Words(const TestPaths&)> resume(Words more = {}) {
  Words w = {"train", "--out", "RUN", "--resume", "--steps", "7"};
  w.insert(w.end(), more.begin(), more.end());
  return replaced(w);
}

std::function<void(const TestPaths&)> file(const std::string& name, const std::string& content) {
  return [=](const TestPaths& p) { write(p.root + "/" + name, content); };
}

/// Makes a symbolic link that leads to itself.
std::function<void(const TestPaths&)> circle(const std::string& name) {
  return [=](const TestPaths& p) {
    std::filesystem::create_directories(std::filesystem::path(p.root + "/" + name).parent_path());
    std::filesystem::create_symlink(p.root + "/" + name, p.root + "/" + name);
  };
}

/// Returns a dotted key that is nested 40,000 deep.
std::string deep_key() {
  std::string key = "a";
  for (int i = 1; i < 40'000; ++i) key += ".a";
  return key;
}

/// Corrupts a file of the newest checkpoint.
std::function<void(const TestPaths&)> damage(const std::string& name,
                                             const std::function<void(std::string&)>& change) {
  return [=](const TestPaths& p) {
    const std::string path = p.newest() + "/" + name;
    std::string bytes = read(path);
    change(bytes);
    write(path, bytes);
  };
}

/// Replaces the header of the newest model.safetensors and recomputes its checksum, as a forger
/// would.
std::function<void(const TestPaths&)> header(const std::function<void(std::string&)>& change) {
  return damage("model.safetensors", [=](std::string& bytes) {
    uint64_t n = 0;
    std::memcpy(&n, bytes.data(), 8);
    std::string text = bytes.substr(8, n);
    const std::string data = bytes.substr(8 + n);
    change(text);
    const std::string key = "\"xxh3\":\"";
    if (const size_t at = text.find(key); at != std::string::npos) {
      text.replace(at + key.size(), 16, std::string(16, '0'));
      text.replace(at + key.size(), 16,
                   fmt::format("{:016x}", XXH3_64bits(text.data(), text.size())));
    }
    n = text.size();
    std::string length(8, ' ');
    std::memcpy(length.data(), &n, 8);
    bytes = length + text + data;
  });
}

const std::vector<BadInputCase>& bad_inputs() {
  static const std::vector<BadInputCase>
      table =
          {
              // The command line.
              {"no command", replaced({}), {"train"}},
              {"unknown command", replaced({"trian"}), {"trian", "train"}},
              {"command of other programs", replaced({"evaluate"}), {"did you mean eval?"}},
              {"option of other programs", train({"--epochs", "3"}), {"did you mean \"--steps\"?"}},
              {"key as an option",
               train({"--accumulate", "2"}),
               {"it is a key; did you mean --set accumulate=VALUE?"}},
              {"unknown option", train({"--lenght", "8"}), {"--lenght", "--length"}},
              {"unknown option of eval", replaced({"eval", "--ouť", "RUN"}), {"--ou"}},
              {"option without value", train({"--steps"}), {"--steps"}},
              {"word that belongs to nothing", train({"banana"}), {"banana"}},
              {"length not a number", train({"--length", "long"}), {"length", "long", "integer"}},
              {"length with a tail", train({"--length", "16k"}), {"length", "16k", "integer"}},
              {"length zero", train({"--length", "0"}), {"length", "0", "1 to 2147483647"}},
              {"length negative", train({"--length", "-8"}), {"length", "-8", "1 to 2147483647"}},
              {"batch zero", train({"--batch", "0"}), {"batch", "0", "1 to 2147483647"}},
              {"layers zero", train({"--layers", "0"}), {"n_layer", "0", "1 or more"}},
              {"layers without number",
               train({"--layers", "100000000"}),
               {"n_layer", "100000000", "10000 or less"}},
              {"a table larger than the memory",
               train({"--set", "model.vocab=2000000000"}),
               {"parameters", "cpu has", "fewer layers"}},
              {"steps negative", train({"--steps", "-1"}), {"steps", "-1"}},
              {"steps beyond 64 bits",
               train({"--steps", "99999999999999999999"}),
               {"steps", "99999999999999999999"}},
              {"seconds negative", train({"--seconds", "-3"}), {"seconds", "-3"}},
              {"seconds not a number", train({"--seconds", "nan"}), {"seconds", "nan"}},
              {"threads negative", train({"--threads", "-1"}), {"threads", "-1", "1024"}},
              {"precision",
               train({"--precision", "f16"}),
               {"precision", "f16", "f32", "tf32", "bf16"}},
              {"products", train({"--products", "mkl"}), {"mkl", "own", "openblas"}},
              {"products of rounded operands",
               train({"--products", "openblas", "--precision", "bf16"}),
               {"--products", "--precision", "bf16"}},
              {"products of another device",
               train({"--products", "openblas", "--device", "cuda"}),
               {"--products", "--device", "cuda"}},
              {"threads too many", train({"--threads", "5000"}), {"threads", "5000", "1024"}},
              {"seed negative", train({"--seed", "-1"}), {"seed", "-1"}},
              {"unknown device", train({"--device", "tpu"}), {"tpu", "cpu"}},
              {"device that is not there", train({"--device", "cuda"}), {"cuda", "not available"}},
              {"unknown dtype", train({"--dtype", "f33"}), {"f33", "f32", "bf16"}},
              {"unknown memory policy", train({"--memory", "standart"}), {"standart", "standard"}},
              {"memory policy without blocks",
               train({"--memory", "reversible:0"}),
               {"reversible:K"}},
              {"unknown model",
               train({"--model", "local_transfomer"}),
               {"local_transfomer", "local_transformer"}},
              {"unknown preset", train({"--model", "transformer:smal"}), {"smal", "small"}},
              {"unknown task", train({"--task", "byte"}), {"byte", "bytes"}},
              {"data without a name", train({"--data", "ROOT/text"}), {"--data", "bytes="}},
              {"data of another task", train({"--data", "words=ROOT/text"}), {"words", "bytes"}},
              {"data without a file", train({"--data", "bytes="}), {"--data", "bytes="}},
              {"no data",
               replaced({"train", "--model", "transformer", "--out", "ROOT/fresh"}),
               {"--data"}},
              {"negative save-every", train({"--save-every", "-2"}), {"save_every", "-2"}},
              {"negative keep", train({"--keep", "-1"}), {"keep", "-1"}},

              {"resume that is neither",
               train({"--resume=maybe"}),
               {"--resume", "maybe", "true or false"}},
              {"batch beyond counting",
               train({"--batch", "1000000000000"}),
               {"batch", "1000000000000", "2147483647"}},
              {"batch beyond memory",
               train({"--batch", "2000000000"}),
               {"out of memory", "128000000000 bytes", "shrink the batch"}},
              {"more tokens than can be counted",
               train({"--batch", "2000000000", "--length", "2000000000", "--set",
                      "accumulate=2000000000"}),
               {"64 bits", "2000000000"}},
              {"batches of no step",
               train({"--set", "accumulate=0"}),
               {"accumulate", "0", "1 to 2147483647"}},
              {"more checkpoints than there can be",
               train({"--keep", "4294967297"}),
               {"keep", "4294967297"}},
              {"device without a number", train({"--device", "cuda:x"}), {"cuda:x", "cuda:N"}},

              // --set, --config.
              {"set without a value", train({"--set", "model.dropout"}), {"model.dropout", "="}},
              {"set of an unknown key",
               train({"--set", "model.dropuot=0.1"}),
               {"model.dropuot", "model.dropout"}},
              {"set of an unknown part",
               train({"--set", "modle.dropout=0.1"}),
               {"modle.dropout", "model.dropout"}},
              {"set to a wrong type",
               train({"--set", "model.dropout=much"}),
               {"model.dropout", "much", "number"}},
              {"set to a wrong truth",
               train({"--set", "model.qkv_bias=maybe"}),
               {"model.qkv_bias", "maybe", "true"}},
              {"set to a wrong choice",
               train({"--set", "model.positions=sinusiod"}),
               {"sinusiod", "sinusoid"}},
              {"dropout of 2", train({"--set", "model.dropout=2"}), {"dropout", "2"}},
              {"width that heads do not divide",
               train({"--set", "model.n_head=3"}),
               {"d_model", "16", "3"}},
              {"width zero", train({"--set", "model.d_model=0"}), {"d_model", "0"}},
              {"window zero",
               train({"--model", "local_transformer", "--set", "model.window=0"}),
               {"window", "0"}},
              {"vocabulary that cannot hold a byte",
               train({"--set", "model.vocab=100"}),
               {"vocab", "100", "256"}},
              {"a byte for a mask",
               train({"--model", "etc:tiny", "--set", "model.vocab=257"}),
               {"model.mask_id", "got 22, which is a byte", "256 or more"}},
              {"unknown optimizer", train({"--set", "optimizer.name=adan"}), {"adan", "adam"}},
              {"unknown schedule", train({"--set", "schedule.name=cosin"}), {"cosin", "cosine"}},
              {"negative learning rate", train({"--set", "optimizer.lr=-1"}), {"lr", "-1"}},
              {"learning rate that is no number",
               train({"--set", "optimizer.lr=nan"}),
               {"lr", "nan"}},
              {"missing config", train({"--config", "ROOT/none.toml"}), {"none.toml"}},
              {"config that is a folder", train({"--config", "ROOT"}), {"folder"}},
              {"config that is not TOML",
               train({"--config", "ROOT/c.toml"}),
               {"c.toml:1:"},
               file("c.toml", "length = = 3\n")},
              {"config with an unknown key",
               train({"--config", "ROOT/c.toml"}),
               {"c.toml", "lenght", "length"},
               file("c.toml", "lenght = 8\n")},
              {"config with an unknown table",
               train({"--config", "ROOT/c.toml"}),
               {"c.toml", "modle"},
               file("c.toml", "[modle]\nn_layer = 2\n")},
              {"config with a wrong type",
               train({"--config", "ROOT/c.toml"}),
               {"c.toml", "accumulate", "integer"},
               file("c.toml", "accumulate = \"two\"\n")},
              {"config with a table for a value",
               train({"--config", "ROOT/c.toml"}),
               {"c.toml", "length"},
               file("c.toml", "[length]\nx = 1\n")},
              {"config with a repeated key",
               train({"--config", "ROOT/c.toml"}),
               {"c.toml", "length"},
               file("c.toml", "length = 8\nlength = 9\n")},

              // Windows, blocks, and what a run starts from.
              {"window of nothing",
               train({"--model", "longformer", "--set", "model.one_sided_window=[0]"}),
               {"one_sided_window is 0", "expected 1 to"}},
              {"window beyond counting",
               train({"--model", "longformer_lm", "--set", "model.window=[9000000000000000000]"}),
               {"window is 9000000000000000000", "expected 1 to"}},
              {"more dilated heads than heads",
               train({"--model", "longformer_lm", "--set", "model.dilated_heads=3"}),
               {"dilated_heads is 3", "n_head = 2"}},
              {"more blocks than positions",
               train({"--model", "blockbert", "--set", "model.n_block=100000000000"}),
               {"n_block is 100000000000", "n_max = 512"}},
              {"window of nothing in an encoder-decoder",
               train({"--model", "led", "--task", "wiki-leads", "--data", "wiki-leads=ROOT",
                      "--set", "model.one_sided_window=[0]"}),
               {"led: one_sided_window is 0", "expected 1 to"}},
              {"no windows",
               train({"--model", "longformer_lm", "--set", "model.window=[]"}),
               {"window is empty", "an entry for each layer"}},
              {"dilation of nothing",
               train({"--model", "longformer", "--set", "model.dilation=[0]"}),
               {"dilation is 0", "expected 1 to"}},
              {"globals that there are not",
               train({"--model", "longformer", "--set", "model.globals=last"}),
               {"model.globals", "last", "expected by_task, first, none, question or candidate"}},
              {"block of nothing",
               train({"--model", "bigbird", "--set", "model.block=0"}),
               {"bigbird: block is 0", "expected 1 or more"}},
              {"fewer random blocks than none",
               train({"--model", "bigbird", "--set", "model.n_random=-1"}),
               {"n_random is -1", "expected 0 or more", "n_max = 1024"}},
              {"random blocks that nobody gives",
               train({"--model", "bigbird", "--set", "model.random=given"}),
               {"model.random: got given", "expected uniform or first_1024"}},
              {"repeats of no given block",
               train({"--model", "bigbird", "--set", "model.count_repeats=true"}),
               {"count_repeats is for random = given"}},
              {"mixtures of all positions that are causal",
               train({"--model", "linformer", "--set", "model.causal=true"}),
               {"linformer: causal is true", "expected false"}},
              {"more projected rows than positions",
               train({"--model", "linformer", "--set", "model.r=[513]"}),
               {"linformer: r is 513", "expected 1 to n_max = 512"}},
              {"projected lengths of layers that share a matrix",
               train({"--model", "linformer", "--set", "model.r=[8,4]", "--set",
                      "model.sharing=layerwise"}),
               {"r is 8 and 4", "needs one r for all layers"}},
              {"no blocks",
               train({"--model", "blockbert", "--set", "model.n_block=0"}),
               {"n_block is 0", "expected 1 to n_max = 512"}},
              {"heads that do not add up",
               train({"--model", "blockbert", "--set", "model.heads_per_shift=[3]"}),
               {"heads_per_shift", "adds up to 3", "expected n_head = 2"}},
              {"stride of nothing",
               train({"--model", "sparse_transformer", "--set", "model.stride=0"}),
               {"stride is 0", "expected 1 or more"}},
              {"more columns than the stride",
               train({"--model", "sparse_transformer", "--set", "model.columns=99"}),
               {"columns is 99", "expected 1 to stride = 32"}},
              {"index sets that there are not",
               train({"--model", "sparse_transformer", "--set", "model.index_sets=window"}),
               {"index_sets has \"window\"", "local, strided, block, summary"}},
              {"negative radius",
               train({"--model", "etc", "--set", "model.radius=-1"}),
               {"radius is -1", "expected 0 or more"}},
              {"no globals",
               train({"--model", "etc", "--set", "model.n_global=0"}),
               {"n_global is 0", "expected 1 or more"}},
              {"too few relations",
               train({"--model", "etc", "--set", "model.relations=1"}),
               {"relations is 1", "expected 2 max_distance + 4 = 20 or more"}},
              {"random blocks of ETC below none",
               train({"--model", "bigbird_etc", "--set", "model.n_random=-2"}),
               {"n_random is -2", "expected 0 or more"}},
              {"chunk of nothing",
               train({"--model", "reformer", "--set", "model.chunk=0"}),
               {"chunk is 0", "expected 1 or more"}},
              {"odd number of buckets",
               train({"--model", "reformer", "--set", "model.buckets=[3]"}),
               {"buckets", "even numbers from 2 on", "3"}},
              {"heads that do not divide",
               train({"--model", "bigbird", "--set", "model.n_head=3"}),
               {"bigbird: d_model 16 is not a multiple of n_head 3", "one of 1, 2, 4, 8, 16"}},
              {"eval as another model",
               replaced({"eval", "--out", "RUN", "--model", "longformer"}),
               {"--model: got longformer", "holds a run of transformer", "leave --model out"}},
              {"going on as another model",
               resume({"--model", "longformer"}),
               {"--model: got longformer", "holds a run of transformer", "leave --model out"}},
              {"start from nothing", train({"--from", "ROOT/none"}), {"--from", "none"}},
              {"start from another architecture",
               train({"--model", "longformer", "--from", "RUN"}),
               {"--from", "a run of transformer", "lacks", "more"}},
              {"start from another width",
               train({"--from", "RUN", "--set", "model.d_ff=24"}),
               {"--from", "a run of transformer", "[24, 16]", "[16, 16]"}},
              {"start from other tokens",
               train({"--from", "RUN", "--tokenizer", "ROOT/vocab.txt"}),
               {"--from: the tokens of this run are", "vocab.txt, and those of", "are bytes",
                "expected --tokenizer and data as there"},
               file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")},
              {"start with unknown positions",
               train({"--from", "RUN", "--set", "start.positions=repeated"}),
               {"start.positions", "repeated", "repeat"}},

              // Data.
              {"missing data", train({"--data", "bytes=ROOT/none.txt"}), {"none.txt"}},
              {"empty data", train({"--data", "bytes=ROOT/empty"}), {"empty"}, file("empty", "")},
              {"data shorter than one window",
               train({"--data", "bytes=ROOT/short"}),
               {"10 bytes", "17", "--length"},
               file("short", "twelve bytes")},
              {"window longer than the data",
               train({"--length", "19000"}),
               {"18000 bytes", "19001", "--length"}},
              {"training part of nothing", train({"--split", "0/50/50"}), {"train"}},
              {"split of two", train({"--split", "90/10"}), {"90/10", "90/5/5"}},
              {"split that does not add up", train({"--split", "90/10/10"}), {"90/10/10", "100"}},
              {"split of words", train({"--split", "most/some/none"}), {"most/some/none"}},
              {"split with a negative part", train({"--split", "110/-5/-5"}), {"110/-5/-5"}},
              {"gzip cut off",
               train({"--data", "bytes=ROOT/t.gz"}),
               {"t.gz"},
               [](const TestPaths& p) {
                 const std::string whole =
                     read(LONGSPAN_SOURCE_DIR "/data/samples/tinyshakespeare.txt.gz");
                 write(p.root + "/t.gz", whole.substr(0, whole.size() / 2));
               }},
              {"gzip damaged",
               train({"--data", "bytes=ROOT/t.gz"}),
               {"t.gz"},
               [](const TestPaths& p) {
                 std::string whole =
                     read(LONGSPAN_SOURCE_DIR "/data/samples/tinyshakespeare.txt.gz");
                 whole[whole.size() / 2] = static_cast<char>(whole[whole.size() / 2] ^ 0x55);
                 write(p.root + "/t.gz", whole);
               }},
              {"sequence longer than a position table",
               train({"--set", "model.positions=learned", "--set", "model.n_max=8"}),
               {"16", "8"}},
              {"more memory than there may be",
               train({"--set", "memory_limit=300000"}),
               {"out of memory", "total"}},
              {"more memory than there may be, in KiB",
               train({"--set", "memory_limit=290KiB"}),
               {"out of memory", "total"}},
              {"memory limit that is no size",
               train({"--set", "memory_limit=20XiB"}),
               {"memory_limit is \"20XiB\"", "20MiB, 64K, 4GB", "KB is 1000"}},
              {"budget that is no size",
               train({"--budget", "20XiB"}),
               {"--budget", "20XiB", "20MiB, 64K, 4GB", "KB is 1000"}},
              {"budget of a plan that is no size",
               replaced({"memory", "--budget", "20XiB"}),
               {"--budget", "20XiB", "20MiB, 64K, 4GB", "KB is 1000"}},
              {"axes for fewer tokens",
               train(
                   {"--model", "reformer", "--length", "64", "--set", "model.position_shape=4,8"}),
               {"model.position_shape: got 4,8, which has 32 positions", "such as 8,8"}},
              {"pictures of other sizes",
               replaced({"memory", "--model", "reformer:imagenet64", "--length", "16384"}),
               {"64,64,3 has 12288 positions", "86,64,3, with n_max = 16384"}},
              {"more tokens than positions that were set",
               train({"--model", "reformer", "--set", "model.n_max=8"}),
               {"got 16", "8 tokens", "larger model.n_max"}},
              {"more tokens than positions, and a run to start from",
               train({"--model", "transformer:bert", "--length", "1024", "--from", "RUN"}),
               {"got 1024", "at most 512 tokens", "model.n_max"}},
              {"numbers that are none, op by op",
               train({"--set", "anomaly=true", "--lr", "1e30", "--set", "schedule.warmup=0"}),
               {"produced NaN or Inf", "in transformer.layers.0"}},
              {"op by op and as a whole",
               train({"--set", "anomaly=true", "--set", "graph=true"}),
               {"anomaly", "graph"}},

              // The output folder.
              {"out below a file", train({"--out", "ROOT/file/run"}), {"file"}, file("file", "x")},
              {"out that is a file", train({"--out", "ROOT/file"}), {"file"}, file("file", "x")},
              {"out with an earlier run", train({"--out", "RUN"}), {"--resume", "--out"}},
              {"full disk", train({}), {"model.safetensors"}, {}, 4096},
              {"full disk beside an earlier checkpoint", resume(), {"safetensors"}, {}, 4096},

              // Checkpoints.
              {"eval without a run", replaced({"eval"}), {"--out"}},
              {"eval of nothing", replaced({"eval", "--out", "ROOT/none"}), {"none"}},
              {"eval of a folder without checkpoints",
               replaced({"eval", "--out", "ROOT/hollow"}),
               {"hollow"},
               file("hollow/x", "")},
              {"eval in windows that do not move",
               replaced({"eval", "--out", "RUN", "--stride", "0"}),
               {"stride is 0", "expected 1 to length"}},
              {"eval in windows that leave gaps",
               replaced({"eval", "--out", "RUN", "--stride", "99999"}),
               {"stride is 99999"}},
              {"eval with a stride in words",
               replaced({"eval", "--out", "RUN", "--stride", "few"}),
               {"few"}},
              {"eval of a step that is not there",
               replaced({"eval", "--out", "RUN", "--step", "5"}),
               {"5"}},
              {"generate without a run", replaced({"generate"}), {"--out"}},
              {"checkpoint cut off",
               resume(),
               {"model.safetensors"},
               damage("model.safetensors", [](std::string& b) { b.resize(b.size() - 1); })},
              {"checkpoint cut to its header",
               resume(),
               {"model.safetensors"},
               damage("model.safetensors", [](std::string& b) { b.resize(100); })},
              {"checkpoint of no bytes",
               resume(),
               {"model.safetensors"},
               damage("model.safetensors", [](std::string& b) { b.clear(); })},
              {"checkpoint with a byte too many",
               resume(),
               {"model.safetensors"},
               damage("model.safetensors", [](std::string& b) { b += 'x'; })},
              {"bit flipped in the weights",
               resume(),
               {"model.safetensors"},
               damage("model.safetensors",
                      [](std::string& b) {
                        b[b.size() - 9] = static_cast<char>(b[b.size() - 9] ^ 4);
                      })},
              {"bit flipped in the header",
               resume(),
               {"model.safetensors"},
               damage("model.safetensors",
                      [](std::string& b) { b[40] = static_cast<char>(b[40] ^ 1); })},
              {"bit flipped in the optimizer",
               resume(),
               {"optimizer.safetensors"},
               damage("optimizer.safetensors",
                      [](std::string& b) {
                        b[b.size() - 3] = static_cast<char>(b[b.size() - 3] ^ 64);
                      })},
              {"header longer than memory",
               resume(),
               {"model.safetensors"},
               damage("model.safetensors", [](std::string& b) { b[6] = 127; })},
              {"header that is not JSON",
               resume(),
               {"model.safetensors", "checksum"},
               header([](std::string& h) { h = std::string("not JSON"); })},
              {"header nested deeply",
               resume(),
               {"model.safetensors", "checksum"},
               header([](std::string& h) { h = std::string(100'000, '['); })},
              {"tensor that overlaps another",
               resume(),
               {"model.safetensors", "needs"},
               header([](std::string& h) {
                 replace(h, "\"data_offsets\":[0,", "\"data_offsets\":[1,");
               })},
              {"tensor of a negative size",
               resume(),
               {"model.safetensors", "sizes from 0 on"},
               header([](std::string& h) { replace(h, "\"shape\":[", "\"shape\":[-"); })},
              {"tensor of a huge size",
               resume(),
               {"model.safetensors", "overflow"},
               header([](std::string& h) {
                 replace(h, "\"shape\":[", "\"shape\":[9223372036854775807,");
               })},
              {"tensor of an unknown dtype",
               resume(),
               {"model.safetensors", "F31"},
               header(
                   [](std::string& h) { replace(h, "\"dtype\":\"F32\"", "\"dtype\":\"F31\""); })},
              {"optimizer state missing",
               resume(),
               {"optimizer.safetensors"},
               [](const TestPaths& p) {
                 std::filesystem::remove(p.newest() + "/optimizer.safetensors");
               }},
              {"state missing",
               resume(),
               {"state.json"},
               [](const TestPaths& p) { std::filesystem::remove(p.newest() + "/state.json"); }},
              {"state that is not JSON",
               resume(),
               {"state.json"},
               damage("state.json", [](std::string& b) { b.resize(1); })},
              {"folder of another step",
               resume(),
               {"state.json", "step 6", "step-99"},
               [](const TestPaths& p) {
                 std::filesystem::rename(p.newest(), p.run + "/checkpoints/step-99");
               }},
              {"checkpoint of another program",
               resume(),
               {"step-7/state.json", "tokens"},
               [](const TestPaths& p) {
                 write_state(p.run, 7, read_tensors(p.newest() + "/model.safetensors"),
                             read_tensors(p.newest() + "/optimizer.safetensors"));
               }},
              {"eval of damaged weights",
               replaced({"eval", "--out", "RUN"}),
               {"model.safetensors", "checksum"},
               damage("model.safetensors", [](std::string& b) { b.back() = char(b.back() ^ 1); })},
              {"generate from damaged weights",
               replaced({"generate", "--out", "RUN"}),
               {"model.safetensors", "checksum"},
               damage("model.safetensors", [](std::string& b) { b.back() = char(b.back() ^ 1); })},
              {"eval with another model",
               replaced({"eval", "--out", "RUN", "--layers", "3"}),
               {"model.safetensors", "another model"}},
              {"eval of an unknown part",
               replaced({"eval", "--out", "RUN", "--part", "tset"}),
               {"tset", "train, valid or test"}},
              {"eval of an empty part",
               replaced({"eval", "--out", "RUN", "--split", "90/10/0", "--part", "test",
                         "--other-data"}),
               {"test part", "90/10/0"}},
              {"state of another step",
               resume(),
               {"state.json"},
               damage("state.json",
                      [](std::string& b) { replace(b, "\"step\":6", "\"step\":9"); })},
              {"resume with more layers", resume({"--layers", "2"}), {"model.safetensors"}},
              {"resume with another width",
               resume({"--set", "model.d_model=24"}),
               {"model.safetensors", "24"}},
              {"resume with another optimizer",
               resume({"--set", "optimizer.name=sgd"}),
               {"optimizer.safetensors"}},

              // Sampling.
              {"negative temperature",
               replaced({"generate", "--out", "RUN", "--temperature", "-1"}),
               {"temperature", "-1"}},
              {"top-p of 2", replaced({"generate", "--out", "RUN", "--top-p", "2"}), {"top", "2"}},
              {"negative top-k",
               replaced({"generate", "--out", "RUN", "--top-k", "-1"}),
               {"top", "-1"}},
              {"negative number of tokens",
               replaced({"generate", "--out", "RUN", "--tokens", "-5"}),
               {"tokens", "-5"}},

              {"nothing to go on from",
               replaced({"generate", "--out", "RUN", "--prompt", ""}),
               {"prompt"}},
              {"generate from an encoder",
               replaced({"generate", "--out", "ROOT/encoder"}),
               {"transformer:encoder", "expected a decoder"},
               [](const TestPaths& p) {
                 const Outcome o = run(short_training(p.text, p.root + "/encoder", 1,
                                                      {"--model", "transformer:encoder"}));
                 ASSERT_EQ(o.code, 0) << o.err;
               }},

              // Data command.
              {"unknown data command", replaced({"data", "lst"}), {"lst", "list"}},
              {"unknown data set", replaced({"data", "check", "enwik9"}), {"enwik9"}},
              {"missing data set",
               replaced({"data", "check", "bytes", "--data", "bytes=ROOT/none"}),
               {"none"}},
          };
  return table;
}

/// Files with deep nesting, names that config.toml cannot hold, and links that lead to themselves.
const std::vector<BadInputCase>& cases_of_depth_and_paths() {
  static const std::vector<BadInputCase> table = {
      {"config with a key nested deep",
       train({"--config", "ROOT/c.toml"}),
       {"c.toml:2: a key is nested deeper than 16"},
       file("c.toml", "length = 16\n" + deep_key() + " = 1\n")},
      {"config with a table nested deep",
       train({"--config", "ROOT/c.toml"}),
       {"c.toml:1: a key is nested deeper than 16"},
       file("c.toml", "[" + deep_key() + "]\nx = 1\n")},
      {"config with arrays nested deep",
       train({"--config", "ROOT/c.toml"}),
       {"c.toml:1: values are nested deeper than 16"},
       file("c.toml", "length = " + std::string(80'000, '['))},
      {"run with a config nested deep",
       replaced({"eval", "--out", "RUN"}),
       {"run/config.toml:1: a key is nested deeper than 16"},
       [](const TestPaths& p) { write(p.run + "/config.toml", deep_key() + " = 1\n"); }},
      {"run to go on with, with a config nested deep",
       resume(),
       {"run/config.toml:1: a key is nested deeper than 16"},
       [](const TestPaths& p) { write(p.run + "/config.toml", "[" + deep_key() + "]\n"); }},

      // Names that config.toml cannot hold, and links that lead to themselves.
      {"data whose name is not UTF-8",
       train({"--data", "bytes=ROOT/caf\xE9"}),
       {"config: data cannot be written", "not UTF-8", "rename that or give a symbolic link"},
       file("caf\xE9", std::string(5000, 'x'))},
      {"folder of all data whose name is not UTF-8",
       train({"--set", "data_root=ROOT/caf\xE9"}),
       {"config: data_root cannot be written", "rename that or give a symbolic link"}},
      {"tokenizer whose name is not UTF-8",
       train({"--tokenizer", "ROOT/caf\xE9.txt"}),
       {"config: tokenizer cannot be written", "rename that or give a symbolic link"},
       file("caf\xE9.txt", "[UNK]\na\n")},
      {"run to start from whose name is not UTF-8",
       train({"--from", "ROOT/caf\xE9"}),
       {"config: start.from cannot be written", "rename that or give a symbolic link"}},
      {"data that lead to themselves",
       train({"--data", "bytes=ROOT/o"}),
       {"/o: Too many levels of symbolic links (ELOOP): they lead in a circle"},
       circle("o")},
      {"folder of all data that leads to itself",
       replaced({"train", "--task", "enwik8", "--data-root", "ROOT/o", "--out", "ROOT/fresh"}),
       {"/o/enwik8: Too many levels", "they lead in a circle"},
       circle("o")},
      {"file of a data set that leads to itself",
       replaced({"data", "check", "enwik8", "--data-root", "ROOT"}),
       {"/enwik8/enwik8: Too many levels", "they lead in a circle"},
       circle("enwik8/enwik8")},
      {"samples with answers that lead to themselves",
       replaced({"data", "check", "promoter", "--data", "promoter=ROOT/o"}),
       {"/o: Too many levels", "they lead in a circle"},
       circle("o")},
      {"tokenizer that leads to itself",
       train({"--tokenizer", "ROOT/o"}),
       {"/o: Too many levels", "they lead in a circle"},
       circle("o")},
      {"vocabulary that leads to itself",
       train({"--tokenizer", "ROOT/t"}),
       {"/t/vocab.txt: Too many levels", "they lead in a circle"},
       circle("t/vocab.txt")},
      {"config that leads to itself",
       train({"--config", "ROOT/o"}),
       {"/o: Too many levels", "they lead in a circle"},
       circle("o")},
      {"run folder that leads to itself",
       train({"--out", "ROOT/o"}),
       {"Too many levels", "they lead in a circle"},
       circle("o")},
      {"eval of a folder that leads to itself",
       replaced({"eval", "--out", "ROOT/o"}),
       {"/o: Too many levels", "they lead in a circle"},
       circle("o")},
      {"start from a folder that leads to itself",
       train({"--from", "ROOT/o"}),
       {"Too many levels", "they lead in a circle"},
       circle("o")},
      {"pictures into a folder that leads to itself",
       replaced({"draw", "--model", "transformer", "--out", "ROOT/o"}),
       {"/o/pictures: Too many levels", "they lead in a circle"},
       circle("o")},
      {"study of a folder that leads to itself",
       replaced({"study", "memory", "--out", "ROOT/o"}),
       {"/o: Too many levels", "they lead in a circle"},
       circle("o")},
  };
  return table;
}

class BadInput : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new Folder;
    write(*shared_ / "text", some_text(20'000));
    const Outcome o =
        run(short_training(*shared_ / "text", *shared_ / "run", 6, {"--save-every", "3"}));
    ASSERT_EQ(o.code, 0) << o.err;
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }

  void check(const BadInputCase& c) {
    SCOPED_TRACE(c.name);
    const Folder folder;
    std::filesystem::copy(shared_->path(), folder.path(), std::filesystem::copy_options::recursive);
    const TestPaths place{folder.path(), folder / "text", folder / "run", folder / "fresh"};
    if (c.prepare) c.prepare(place);
    const auto before = contents(folder.path());
    Start start{c.arguments(place)};
    start.file_limit = c.file_limit;
    const Outcome o = run(start);
    EXPECT_GT(o.code, 0) << "signal " << o.signal << "\n" << o.out << o.err;
    EXPECT_LT(o.code, 126) << o.err;
    for (const std::string& part : c.says) {
      EXPECT_NE(o.err.find(part), std::string::npos) << "not said: " << part << "\n" << o.err;
    }
    EXPECT_EQ(o.err.find("terminate called"), std::string::npos) << o.err;

    // Every earlier file is still there, byte for byte.
    const auto after = contents(folder.path());
    for (const auto& [path, bytes] : before) {
      // A resumed run writes to these two files from its start.
      if (path == place.run + "/config.toml" || path == place.run + "/metrics.jsonl") continue;
      const auto same = [&, &p = path](const auto& entry) { return entry.first == p; };
      const auto found = std::find_if(after.begin(), after.end(), same);
      ASSERT_NE(found, after.end()) << path << " is gone";
      EXPECT_TRUE(found->second == bytes) << path << " has changed";
    }
    // No file is half-written: there is no checkpoint, no summary, no temporary file.
    EXPECT_FALSE(exists(place.fresh + "/summary.json"));
    EXPECT_EQ(saved_steps(place.fresh), std::vector<int64_t>{});
    for (const auto& [path, bytes] : after) {
      EXPECT_EQ(path.find("/."), std::string::npos) << path;
    }
  }

  static Folder* shared_;
};

Folder* BadInput::shared_ = nullptr;

TEST_F(BadInput, StandardOutputThatIsFull) {
  for (const Words& w : {Words{"models"}, Words{"models", "--help"}, Words{"data"},
                         Words{"generate", "--out", *shared_ / "run", "--tokens", "3"}}) {
    Start start{w};
    start.out = "/dev/full";
    const Outcome o = run(start);
    EXPECT_EQ(o.code, 1) << w[0];
    if (w.back() != "--help") {
      EXPECT_NE(o.err.find("ENOSPC"), std::string::npos) << o.err;
    }
  }
}

TEST_F(BadInput, FolderWhereNobodyCanWrite) {
  const Outcome o = run(short_training(*shared_ / "text", "/proc/longspan", 1));
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("/proc/longspan"), std::string::npos) << o.err;
}

TEST_F(BadInput, FolderThatAnotherRunWritesTo) {
  const Folder folder;
  Program first(Start{short_training(*shared_ / "text", folder / "run", 0, {"--seconds", "60"})});
  for (int i = 0; i < 2000 && !exists(folder / "run/metrics.jsonl"); ++i) usleep(5000);
  const Outcome o =
      run(short_training(*shared_ / "text", folder / "run", 0, {"--seconds", "1", "--resume"}));
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("another process is writing to"), std::string::npos) << o.err;
  first.send(SIGINT);
  EXPECT_EQ(first.wait().code, 0);
}

/// Copying a new corpus over the old one truncates the old one first, while the run reads it.
TEST_F(BadInput, DataThatAreCutShortDuringARun) {
  const Folder folder;
  write(folder / "text", some_text(2'000'000));
  Program program(
      Start{short_training(folder / "text", folder / "run", 0,
                           {"--seconds", "60", "--save-every", "5", "--log-every", "1"})});
  for (int i = 0; i < 2000 && saved_steps(folder / "run").empty(); ++i) usleep(5000);
  std::filesystem::resize_file(folder / "text", 5000);
  const Outcome o = program.wait();
  EXPECT_EQ(o.code, 1) << "signal " << o.signal << "\n" << o.err;
  EXPECT_NE(o.err.find(folder / "text had 2000000 bytes when it was opened"), std::string::npos)
      << o.err;
  EXPECT_NO_THROW(verify_checkpoint(newest_checkpoint(folder / "run")));
}

/// Standard output may be a file with a size limit.
TEST_F(BadInput, StandardOutputBeyondTheLimitOfFiles) {
  const Folder folder;
  write(folder / "out", "");
  Start start{{"models"}};
  start.out = folder / "out";
  start.file_limit = 100;
  const Outcome o = run(start);
  EXPECT_EQ(o.code, 1) << "signal " << o.signal;
  EXPECT_NE(o.err.find("EFBIG"), std::string::npos) << o.err;
}

TEST_F(BadInput, NestedDeepAndPathsThatLeadNowhere) {
  for (const BadInputCase& c : cases_of_depth_and_paths()) check(c);
}

TEST_F(BadInput, EveryCaseOfTheTable) {
  EXPECT_GE(bad_inputs().size(), 80u);
  for (const BadInputCase& c : bad_inputs()) check(c);
}

/// Root may write to any folder, but not to a file system that is mounted read-only.
TEST_F(BadInput, FolderThatCannotBeWritten) {
  const Folder folder;
  write(folder / "text", some_text(2000));
  const std::string locked = folder / "locked";
  std::filesystem::create_directories(locked);
  const bool root = geteuid() == 0;
  if (root) {
    if (mount("tmpfs", locked.c_str(), "tmpfs", MS_RDONLY, "size=64k") != 0) {
      GTEST_SKIP() << "root without the right to mount";
    }
  } else {
    std::filesystem::permissions(
        locked, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  }
  const Outcome o = run(short_training(folder / "text", locked + "/run", 1));
  EXPECT_GT(o.code, 0);
  EXPECT_NE(o.err.find("locked/run"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find(root ? "EROFS" : "EACCES"), std::string::npos) << o.err;
  EXPECT_EQ(names_in(locked), std::vector<std::string>{});
  if (root) {
    umount(locked.c_str());
  } else {
    std::filesystem::permissions(locked, std::filesystem::perms::owner_all);
  }
}

/// A disk fills up in the middle of a run: the earlier checkpoints stay, the run says why it ends,
/// and it can resume once there is space.
TEST_F(BadInput, DiskThatFillsUp) {
  const Folder folder;
  write(folder / "text", some_text(2000));
  const std::string disk = folder / "disk";
  std::filesystem::create_directories(disk);
  if (geteuid() != 0 || mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  const Words arguments = short_training(folder / "text", disk + "/run", 40,
                                         {"--save-every", "2", "--set", "model.d_model=32"});
  const Outcome o = run(arguments);
  EXPECT_GT(o.code, 0);
  EXPECT_NE(o.err.find("ENOSPC"), std::string::npos) << o.err;
  const std::vector<int64_t> steps = saved_steps(disk + "/run");
  EXPECT_FALSE(steps.empty());
  for (const int64_t step : steps) {
    EXPECT_NO_THROW(verify_checkpoint(checkpoint_path(disk + "/run", step)));
  }
  mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=64m");
  Words more = arguments;
  more.push_back("--resume");
  const Outcome rest = run(more);
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(saved_steps(disk + "/run").back(), 40);
  umount(disk.c_str());
}

/// An unknown value is an error that lists the usable values. Each usable value then works.
TEST(Environment, SimdIsOneThatIsThere) {
  const auto models = [](const std::string& simd) {
    return run(Start{.arguments = {"models"}, .environment = {{"LONGSPAN_SIMD", simd}}});
  };
  const Outcome o = models("sse9");
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("LONGSPAN_SIMD=sse9"), std::string::npos) << o.err;
  int usable = 0;
  for (const std::string name : {"avx512-bf16", "avx512", "avx2", "portable"}) {
    const std::string list = o.err.substr(0, o.err.find(';'));
    const bool offered = list.find(name) != std::string::npos;
    usable += offered;
    EXPECT_EQ(models(name).code, offered ? 0 : 1) << name;
  }
  EXPECT_GE(usable, 1);
}

}  // namespace
}  // namespace longspan::test
