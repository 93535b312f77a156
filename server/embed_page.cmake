# page.html as C++ raw strings, and the hashes by which its Content-Security-Policy allows its own script and style.
file(READ ${INPUT} text)

# The SHA-256 of what stands between <tag> and </tag>, in base64, as a policy writes it.
function(hash_element tag result)
  string(FIND "${text}" "<${tag}>" begin)
  string(FIND "${text}" "</${tag}>" end)
  string(LENGTH "<${tag}>" opening)
  math(EXPR begin "${begin} + ${opening}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${text}" ${begin} ${length} content)
  string(SHA256 hex "${content}")
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(APPEND hex "0000")  # 34 bytes: the last group of three has one byte of zeros
  set(base64 "")
  foreach(at RANGE 0 60 6)
    string(SUBSTRING "${hex}" ${at} 6 bytes)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${bytes} >> ${shift}) & 63")
      string(SUBSTRING "${digits}" ${digit} 1 letter)
      string(APPEND base64 "${letter}")
    endforeach()
  endforeach()
  string(SUBSTRING "${base64}" 0 43 base64)
  set(${result} "'sha256-${base64}='" PARENT_SCOPE)
endfunction()
hash_element(script script_hash)
hash_element(style style_hash)

string(LENGTH "${text}" length)
set(out "#include <string_view>\n\nconstexpr std::string_view kChatPage =")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${text}" ${at} 8000 piece)
  string(APPEND out "\n    R\"dsv4page(${piece})dsv4page\"")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${OUTPUT} "${out};\n
#define DSV4_PAGE_SCRIPT_HASH \"${script_hash}\"
#define DSV4_PAGE_STYLE_HASH \"${style_hash}\"
")
