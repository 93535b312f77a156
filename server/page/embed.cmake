# Writes the page as one file of C++ raw strings, with the hashes by which its Content-Security-Policy allows its
# scripts and its style. In: PAGE (this folder), MARKED, DOMPURIFY and KATEX (their files), PRISM (the folder of its
# components), OUTPUT. An empty name means: without this library.
cmake_minimum_required(VERSION 3.25)
set(SCRIPTS base store tree files math colours markdown stream cards gauge exchange replies list app)
# Languages that get colours, each after the languages that it needs.
set(LANGUAGES markup css clike javascript jsx typescript tsx bash c cpp csharp java kotlin go rust python ruby
  markup-templating php sql json yaml toml ini diff docker makefile cmake swift lua r haskell latex powershell scala
  perl nginx protobuf)

file(READ ${PAGE}/page.html html)
file(READ ${PAGE}/style.css style)
set(scripts "")
foreach(name ${SCRIPTS})
  file(READ ${PAGE}/${name}.js script)
  string(APPEND scripts "${script}")
endforeach()
foreach(library MARKED DOMPURIFY KATEX)
  set(${library}_text "")
  if(${library})
    file(READ ${${library}} ${library}_text)
    # The server does not have the source map of the library.
    string(REGEX REPLACE "//# sourceMappingURL=[^\n]*" "" ${library}_text "${${library}_text}")
  endif()
endforeach()
set(PRISM_text "")
if(PRISM)
  # Prism must not look for code in the page, and must not listen to messages.
  set(PRISM_text "self.Prism = {manual: true, disableWorkerMessageHandler: true};\n")
  foreach(name core ${LANGUAGES})
    file(READ ${PRISM}/prism-${name}.min.js script)
    string(APPEND PRISM_text "${script};\n")
  endforeach()
endif()

# The SHA-256 of an element's text in base64, in the form that a policy uses.
function(policy_hash content result)
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

# Replaces `mark` in the page by the text in the variable `content`. The text must not contain anything that a browser
# reads as the beginning or the end of a script.
function(place mark content)
  if(${content} MATCHES "</(script|style)|<script[ \t\n/>]")
    message(FATAL_ERROR "${content}, which goes to ${mark} of the page, contains the beginning or end of an element")
  endif()
  string(FIND "${html}" "${mark}" at)
  string(LENGTH "${mark}" length)
  math(EXPR behind "${at} + ${length}")
  string(SUBSTRING "${html}" 0 ${at} before)
  string(SUBSTRING "${html}" ${behind} -1 after)
  set(html "${before}${${content}}${after}" PARENT_SCOPE)
endfunction()

# Compilers warn of characters that change the direction of text (a library has them in a pattern): writes them as \u.
function(spell_out_directions variable)
  set(text "${${variable}}")
  # U+202A to U+202E and U+2066 to U+2069: the second and third byte, and the number.
  foreach(bytes "128;170;202a" "128;171;202b" "128;172;202c" "128;173;202d" "128;174;202e" "129;166;2066"
          "129;167;2067" "129;168;2068" "129;169;2069")
    list(GET bytes 0 second)
    list(GET bytes 1 third)
    list(GET bytes 2 code)
    string(ASCII 226 ${second} ${third} character)
    string(REPLACE "${character}" ")dsv4page\" \"\\u${code}\" R\"dsv4page(" text "${text}")
  endforeach()
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

set(hashes "")
foreach(part MARKED_text DOMPURIFY_text KATEX_text PRISM_text scripts)
  policy_hash("${${part}}" hash)
  list(APPEND hashes ${hash})
endforeach()
list(JOIN hashes " " hashes)
policy_hash("${style}" style_hash)
# From the end of the page, so that no mark is found inside an inserted text.
place("@scripts@" scripts)
place("@prism@" PRISM_text)
place("@katex@" KATEX_text)
place("@dompurify@" DOMPURIFY_text)
place("@marked@" MARKED_text)
place("@style.css@" style)

string(LENGTH "${html}" length)
set(out "#include <string_view>\n\nconstexpr char kChatPageText[] =")
set(at 0)
while(at LESS length)
  # A piece ends before a byte that begins a character, because compilers refuse parts of one.
  set(size 8000)
  math(EXPR end "${at} + ${size}")
  while(end LESS length)
    string(SUBSTRING "${html}" ${end} 1 byte)
    string(HEX "${byte}" byte)
    if(NOT byte MATCHES "^[89ab]")
      break()
    endif()
    math(EXPR end "${end} - 1")
  endwhile()
  math(EXPR size "${end} - ${at}")
  string(SUBSTRING "${html}" ${at} ${size} piece)
  spell_out_directions(piece)
  string(APPEND out "\n    R\"dsv4page(${piece})dsv4page\"")
  set(at ${end})
endwhile()
# With the length: compilers limit how far they count a constant text.
file(WRITE ${OUTPUT} "${out};
constexpr std::string_view kChatPage(kChatPageText, sizeof(kChatPageText) - 1);\n
#define DSV4_PAGE_SCRIPT_HASHES \"${hashes}\"
#define DSV4_PAGE_STYLE_HASH \"${style_hash}\"
")
