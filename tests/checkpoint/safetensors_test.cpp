#include "checkpoint/safetensors.h"

#include <random>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/files.h"
#include "support/support.h"

namespace calla {
namespace {
using test::message_of;
using test::safetensors;
using test::tells;

TensorMap parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "f.safetensors");
}
std::string fault_of(const std::string& file) {
  return message_of([&] { parse(file); });
}
std::string fault_of_header(std::string_view header, std::size_t data) {
  return fault_of(safetensors(header, std::string(data, '\0')));
}
/// The fault of a file of 8 bytes of data whose one tensor "a" has this entry.
std::string fault_of_entry(std::string_view entry) {
  return fault_of_header(fmt::format(R"({{"a":{}}})", entry), 8);
}

TEST(Safetensors, ReadsTensorsInPlace) {
  const std::string file =
      safetensors(R"({"__metadata__":{"format":"mlx"},"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
                  R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}   )",
                  "abcdefg");
  const TensorMap tensors = parse(file);
  ASSERT_EQ(tensors.size(), 2U);
  const Tensor& a = tensors.at("a");
  EXPECT_EQ(a.dtype, DType::bf16);
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(reinterpret_cast<const char*>(a.bytes.data()), file.data() + file.size() - 7)
      << "a view, not a copy";
  EXPECT_EQ(a.bytes.size(), 4U);
  EXPECT_EQ(static_cast<char>(tensors.at("b").bytes[0]), 'e');
}

TEST(Safetensors, ReadsScalarsEmptyTensorsAndNone) {
  EXPECT_EQ(parse(safetensors("{}", "")).size(), 0U);
  const std::string file = safetensors(R"({"e":{"dtype":"F32","shape":[0,9],"data_offsets":[4,4]},)"
                                       R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                                       "1234");
  EXPECT_EQ(parse(file).at("s").bytes.size(), 4U);
  EXPECT_EQ(parse(file).at("e").bytes.size(), 0U);
}

TEST(Safetensors, KnowsEveryType) {
  for (const auto& [spelled, size] : std::initializer_list<std::pair<const char*, int>>{{"BOOL", 1},
                                                                                        {"U8", 1},
                                                                                        {"I8", 1},
                                                                                        {"U16", 2},
                                                                                        {"I16", 2},
                                                                                        {"U32", 4},
                                                                                        {"I32", 4},
                                                                                        {"U64", 8},
                                                                                        {"I64", 8},
                                                                                        {"F8_E4M3", 1},
                                                                                        {"F8_E5M2", 1},
                                                                                        {"F16", 2},
                                                                                        {"BF16", 2},
                                                                                        {"F32", 4},
                                                                                        {"F64", 8}}) {
    const std::string file = safetensors(
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", spelled, 3 * size),
        std::string(static_cast<std::size_t>(3 * size), '\0'));
    const TensorMap tensors = parse(file);
    EXPECT_EQ(name(tensors.at("a").dtype), spelled);
    EXPECT_EQ(size_of(tensors.at("a").dtype), static_cast<std::size_t>(size)) << spelled;
  }
}

TEST(Safetensors, TellsWhatStandsInPlaceOfAFile) {
  EXPECT_EQ(fault_of(""), "f.safetensors: is empty; download it again");
  EXPECT_EQ(fault_of("1234567"), "f.safetensors: is cut off: it has 7 bytes; download it again");
  EXPECT_TRUE(tells(fault_of("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
                    {"f.safetensors: is a git-lfs pointer", "git lfs pull"}));
  EXPECT_TRUE(tells(fault_of(std::string("GGUF\3\0\0\0", 8)), {"is a GGUF file", "mlx-community"}));
  EXPECT_TRUE(tells(fault_of("<!DOCTYPE html><html>"), {"is not a safetensors file"}));
  EXPECT_TRUE(tells(fault_of(safetensors("[1]", "")), {"is not a safetensors file: it has no JSON header"}));
  EXPECT_TRUE(tells(fault_of(safetensors("", "")), {"it has no JSON header"}));
}

TEST(Safetensors, SaysHowMuchOfACutFileIsMissing) {
  const std::string whole =
      safetensors(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", std::string(16, 'x'));
  EXPECT_EQ(
      fault_of(whole.substr(0, whole.size() - 5)),
      fmt::format("f.safetensors: is cut off: the header promises {} bytes, the file has {} (5 are missing); "
                  "download it again",
                  whole.size(), whole.size() - 5));
  for (std::size_t size = 8; size < whole.size(); ++size) {
    EXPECT_TRUE(tells(fault_of(whole.substr(0, size)), {"is cut off", "missing", "download it again"}))
        << size;
  }
}

TEST(Safetensors, BoundsTheHeader) {
  const auto with_length = [](std::uint64_t length) {
    std::string file(16, '{');
    for (unsigned i = 0; i < 8; ++i) file[i] = static_cast<char>((length >> (8 * i)) & 0xFFU);
    return fault_of(file);
  };
  EXPECT_TRUE(tells(with_length(100'000'000), {"is cut off: the header promises 100000008 bytes"}));
  EXPECT_TRUE(tells(with_length(100'000'001), {"its header would have 100000001 bytes"}));
  EXPECT_TRUE(tells(with_length(~std::uint64_t{0}), {"its header would have 18446744073709551615 bytes"}));
}

TEST(Safetensors, RefusesAHeaderThatIsNotJson) {
  EXPECT_TRUE(tells(fault_of_header(R"({"a":)", 0),
                    {"f.safetensors: the header: is not valid JSON at line 1, column 6"}));
  EXPECT_TRUE(tells(fault_of_header("{} x", 0), {"not valid JSON"}));
  EXPECT_TRUE(tells(fault_of_header("{\"a\":" + std::string(90'000, '['), 0), {"nested deeper"}));
  EXPECT_TRUE(tells(fault_of_header("{\"\xFF\":1}", 0), {"not valid JSON"}));
}

TEST(Safetensors, RefusesATensorNamedTwice) {
  const std::string entry = R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  EXPECT_TRUE(tells(fault_of_header("{" + entry + "," + entry + "}", 8),
                    {"f.safetensors: the header: names \"a\" twice"}));
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]})"),
                    {"names \"dtype\" twice"}));
}

TEST(Safetensors, RefusesMetadataThatIsNoStrings) {
  for (const char* metadata : {"1", "[]", "null", R"({"a":1})", R"({"a":{}})"}) {
    EXPECT_TRUE(tells(fault_of_header(fmt::format(R"({{"__metadata__":{}}})", metadata), 0),
                      {"has a __metadata__ that is no object of strings"}));
  }
}

TEST(Safetensors, ChecksTheKindOfEveryField) {
  EXPECT_TRUE(tells(fault_of_entry("[]"), {"f.safetensors: tensor \"a\" is not described by an object"}));
  EXPECT_TRUE(tells(fault_of_entry(R"({"shape":[8],"data_offsets":[0,8]})"), {"has no dtype"}));
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U8","data_offsets":[0,8]})"), {"has no shape"}));
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U8","shape":[8]})"), {"has no data_offsets"}));
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1})"),
                    {"unknown field \"x\""}));
  EXPECT_TRUE(
      tells(fault_of_entry(R"({"dtype":8,"shape":[8],"data_offsets":[0,8]})"), {"dtype that is no string"}));
  EXPECT_TRUE(
      tells(fault_of_entry(R"({"dtype":"I4","shape":[8],"data_offsets":[0,8]})"), {"unknown dtype \"I4\""}));
  EXPECT_TRUE(
      tells(fault_of_entry(R"({"dtype":"U8","shape":8,"data_offsets":[0,8]})"), {"shape that is no list"}));
  for (const char* extent : {"-8", "8.0", "\"8\"", "null", "9223372036854775808", "[8]"}) {
    EXPECT_TRUE(
        tells(fault_of_entry(fmt::format(R"({{"dtype":"U8","shape":[{}],"data_offsets":[0,8]}})", extent)),
              {"shape that is no list of whole numbers"}));
    EXPECT_TRUE(
        tells(fault_of_entry(fmt::format(R"({{"dtype":"U8","shape":[8],"data_offsets":[0,{}]}})", extent)),
              {"data_offsets that is no list of whole numbers"}));
  }
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U8","shape":[8],"data_offsets":[0,4,8]})"),
                    {"has 3 data_offsets, not 2"}));
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U8","shape":[8],"data_offsets":[8,0]})"),
                    {"ends at 0 before it begins at 8"}));
}

TEST(Safetensors, HoldsTheShapeAgainstTheOffsets) {
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U16","shape":[2,3],"data_offsets":[0,8]})"),
                    {"tensor \"a\" is U16 [2, 3], which takes 12 bytes, but its data_offsets span 8"}));
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U64","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
                    {"a shape too large"}));
  EXPECT_TRUE(tells(fault_of_entry(R"({"dtype":"U8","shape":[9223372036854775807,3],"data_offsets":[0,8]})"),
                    {"a shape too large"}));
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  const auto two = [](int b_begin, int b_end, std::size_t data) {
    return fault_of_header(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                                       R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                                       b_end - b_begin, b_begin, b_end),
                           data);
  };
  EXPECT_EQ(two(4, 8, 8), "no error");
  EXPECT_TRUE(tells(two(3, 8, 8), {"tensors \"a\" and \"b\" overlap"}));
  EXPECT_TRUE(tells(two(0, 4, 4), {"tensors \"a\" and \"b\" overlap"}));
  EXPECT_TRUE(tells(two(5, 8, 8), {"1 bytes before tensor \"b\" belong to no tensor"}));
  EXPECT_TRUE(tells(two(4, 8, 10), {"2 bytes after the last tensor belong to no tensor"}));
  EXPECT_TRUE(tells(fault_of_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8),
                    {"4 bytes before tensor \"a\""}));
}

TEST(Safetensors, KeepsAStrangeNameOnOneLine) {
  EXPECT_TRUE(tells(fault_of_header(R"({"a\nb":1})", 0), {R"(tensor "a\nb" is not)"}));
}

TEST(Safetensors, AMutatedHeaderIsReadOrRefusedNeverWorse) {
  const std::string seed =
      safetensors(R"({"__metadata__":{"format":"mlx"},"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
                  R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}})",
                  "abcdefg");
  const std::string alphabet("{}[]\",:0123456789eE.-+aBF16U8\\ \0\xFF", 33);
  std::mt19937 random(1);
  int read = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string file = seed;
    for (std::size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % file.size();
      switch (random() % 4) {
        case 0:
          file.erase(at, 1 + random() % 4);
          break;
        case 1:
          file.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 2:
          file.insert(at, seed.substr(random() % seed.size(), random() % 12));
          break;
        default:
          file[at] = alphabet[random() % alphabet.size()];
      }
    }
    try {
      for (const auto& [name, tensor] : parse(file)) {
        ASSERT_GE(reinterpret_cast<const char*>(tensor.bytes.data()), file.data());
        ASSERT_LE(reinterpret_cast<const char*>(tensor.bytes.data()) + tensor.bytes.size(),
                  file.data() + file.size());
      }
      ++read;
    } catch (const Error&) {  // refused
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_LT(read, 20'000);
}

TEST(Safetensors, OpensTheDemo) {
  const SafetensorsFile file(test::demo_model() / "model.safetensors");
  EXPECT_EQ(file.tensors().at("language_model.model.norm.weight").shape, std::vector<std::int64_t>{512});
}

}  // namespace
}  // namespace calla
