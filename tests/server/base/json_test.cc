// The JSON of clients: reading and limits.
#include "server/base/json.h"

#include <malloc.h>

#include <string>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

TEST(JsonFields, RefusesFieldsOfOthersUnlessTheyChangeNothing) {
  static constexpr FieldSpec kTable[] = {
      {"plain", FieldKind::kRefused, "use x"},
      {"ratio", FieldKind::kRefused, "use y", 1, 1},
      {"modes", FieldKind::kRefused, "use z", 0, 0, R"([["text"], false])"},
      {"taken", FieldKind::kText, "A text."},
  };
  const BodySpec spec = {kTable};
  const auto why = [&](const char* text) -> std::string {
    try {
      const JsonDocument document = ParseJson(text);
      const Fields fields(document.root(), "", &spec);
      return "";
    } catch (const ApiError& error) {
      return error.param + "|" + error.what();
    }
  };
  for (const char* text : {"{}", R"({"plain": null, "ratio": null, "modes": null})", R"({"plain": 0, "ratio": 0})",
                           R"({"plain": "", "ratio": 1.0, "modes": ["text"]})", R"({"plain": [], "modes": false})",
                           R"({"plain": {}})", R"({"plain": false, "taken": "x", "unknown": 5})"}) {
    EXPECT_EQ(why(text), "") << text;
  }
  for (const char* value : {"1", "true", "\"x\"", "[0]", "{\"a\": null}", "-1e-9"})
    EXPECT_EQ(why(("{\"plain\": " + std::string(value) + "}").c_str()), "plain|plain is not supported: use x") << value;
  EXPECT_EQ(why(R"({"ratio": 1.5})"), "ratio|ratio is not supported: use y");
  for (const char* value : {"[]", "{}", "0", "\"\"", "[\"text\", \"audio\"]"})
    EXPECT_EQ(why(("{\"modes\": " + std::string(value) + "}").c_str()), "modes|modes is not supported: use z") << value;
}

TEST(JsonFields, NamesThePathAndTheRange) {
  const Json json = ParseJson(R"({"a": {"n": 1.0, "big": 1e30, "s": 5}})").root();
  const Fields fields(json["a"], "a");
  EXPECT_EQ(fields.Integer("n", 0), 1);
  for (const char* name : {"big", "s"}) {
    try {
      if (std::string(name) == "s")
        fields.Text(name);
      else
        fields.Integer(name, 0);
      FAIL();
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param, std::string("a.") + name);
      EXPECT_EQ(error.status, 400);
    }
  }
  EXPECT_THROW(ParseJson(std::string(300, '[')), ApiError);
  std::string many = "[1";
  for (int i = 0; i < 2000000; ++i) many += ",1";
  EXPECT_THROW(ParseJson(many + "]"), ApiError);
  EXPECT_THROW(ParseJson(std::string("{}\0", 3)), ApiError);
  EXPECT_NO_THROW(ParseJson("\"" + std::string(300, '[') + "\""));
  EXPECT_EQ(Dump(FloatToJson(0.1f)), "0.1");
}

TEST(ParseJson, ValuesAreLimitedByTheMemoryThatTheyTake) {
  const auto list = [](const std::string& item, size_t n) {
    std::string text = "[" + item;
    for (size_t i = 1; i < n; ++i) text += "," + item;
    return text + "]";
  };
  const auto heap = [] { return ::mallinfo2().uordblks + ::mallinfo2().hblkhd; };
  for (const std::string item : {"1", "[]", "\"\"", "{\"a\":{}}", "\"0123456789abcdef\""}) {
    size_t n = 1'999'999;  // the maximum, and slightly less than the next power of two
    for (;; n = n * 3 / 4) {
      try {
        const size_t before = heap();
        const JsonDocument document = ParseJson(list(item, n));
        const size_t after = heap(), texts = item.size() > 16 ? 40 * n : 0;  // 0 if the allocator has no counters
        EXPECT_LT(after, before + (size_t{64} << 20) + texts) << item << " " << n;
        break;
      } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 400);
        EXPECT_GT(n, 200'000u) << item;
      }
    }
  }
}

// Each name is compared with the names before it in its object.
TEST(ParseJson, NamesOfObjectsAreLimitedByTheWorkThatTheyMake) {
  const auto object = [](size_t names, size_t length) {
    std::string text = "{";
    for (size_t i = 0; i < names; ++i) {
      const std::string number = std::to_string(100'000'000 + i);
      text += (i > 0 ? ",\"" : "\"") + std::string(length, 'x') + number + "\":1";
    }
    return text + "}";
  };
  EXPECT_EQ(ParseJson(object(5000, 0)).root().size(), 5000u);
  EXPECT_THROW(ParseJson(object(40'000, 0)), ApiError);  // without the limit: seconds, and an hour for a million names
  EXPECT_THROW(ParseJson(object(10'000, 2000)), ApiError);
  std::string many = "[" + object(4000, 0);
  for (int i = 0; i < 40; ++i) many += "," + object(4000, 0);
  EXPECT_THROW(ParseJson(many + "]"), ApiError);
  // Strings that are not names, and names in many objects.
  std::string texts = R"({"a": ["{,x")";
  for (int i = 0; i < 100'000; ++i) texts += R"(, "{,", {"b": "c", "d": {"e\"": ","}})";
  EXPECT_EQ(ParseJson(texts + "]}").root()["a"].size(), 200'001u);
}

}  // namespace
}  // namespace dsv4::server
