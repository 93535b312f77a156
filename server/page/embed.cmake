# Writes the page as one file of C++ raw strings, with the hashes by which its Content-Security-Policy allows its
# scripts and its style. In: PAGE (this folder), MARKED and DOMPURIFY (their files; empty: none), OUTPUT.
cmake_minimum_required(VERSION 3.25)
set(SCRIPTS base store tree markdown stream cards app)

file(READ ${PAGE}/page.html html)
file(READ ${PAGE}/style.css style)
set(scripts "")
foreach(name ${SCRIPTS})
  file(READ ${PAGE}/${name}.js script)
  string(APPEND scripts "${script}")
endforeach()
foreach(library MARKED DOMPURIFY)
  set(${library}_text "")
  if(${library})
    file(READ ${${library}} ${library}_text)
    # The server does not have the source map of the library.
    string(REGEX REPLACE "//# sourceMappingURL=[^\n]*" "" ${library}_text "${${library}_text}")
  endif()
endforeach()

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

set(hashes "")
foreach(part MARKED_text DOMPURIFY_text scripts)
  policy_hash("${${part}}" hash)
  list(APPEND hashes ${hash})
endforeach()
list(JOIN hashes " " hashes)
policy_hash("${style}" style_hash)
# From the end of the page, so that no mark is found inside an inserted text.
place("@scripts@" scripts)
place("@dompurify@" DOMPURIFY_text)
place("@marked@" MARKED_text)
place("@style.css@" style)

string(LENGTH "${html}" length)
set(out "#include <string_view>\n\nconstexpr std::string_view kChatPage =")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${html}" ${at} 8000 piece)
  string(APPEND out "\n    R\"dsv4page(${piece})dsv4page\"")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${OUTPUT} "${out};\n
#define DSV4_PAGE_SCRIPT_HASHES \"${hashes}\"
#define DSV4_PAGE_STYLE_HASH \"${style_hash}\"
")
