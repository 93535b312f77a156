// Text files that are attached to a message: read in the browser, shown as chips, sent as text in the message.
const MOST_FILES = 8, LARGEST_FILE = 512 * 1024, LONGEST_NAME = 120;
let attached = [];  // [{name, text}] of the message that is being written

const sizeText = bytes => (bytes < 1000 ? bytes + " bytes" : bytes < 1e6 ? Math.ceil(bytes / 1000) + " kB" :
  (bytes / 1e6).toFixed(1) + " MB");
const cleanName = name => name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, " ").trim().slice(0, LONGEST_NAME) || "file";

// Returns {name, text}. Throws an error in words: too large, empty, unreadable, or not text.
async function readTextFile(file, largest = LARGEST_FILE) {
  const name = cleanName(file.name);
  if (file.size > largest) {
    throw new Error(name + " has " + sizeText(file.size) + ": a file may have at most " + sizeText(largest));
  }
  let bytes, text;
  try {
    bytes = await file.arrayBuffer();
  } catch {
    throw new Error(name + " cannot be read: choose a file, not a folder");
  }
  if (!bytes.byteLength) throw new Error(name + " is empty");
  try {
    text = new TextDecoder("utf-8", {fatal: true}).decode(bytes);
  } catch {
    text = "\0";
  }
  if (/[\0-\x08\x0e-\x1a\x1c-\x1f]/.test(text)) {
    throw new Error(name + " is not a text file: only UTF-8 text can be attached");
  }
  return {name, text};
}
// DeepSeek's template for files.
const fileText = ({name, text}) => "[file name]: " + name + "\n[file content begin]\n" + text + "\n[file content end]\n";
const withFiles = (files, text) => files.map(fileText).join("") + text;

// A chip with the file's name and size. It opens to show the text; `remove` is optional.
function fileChip({name, text}, remove) {
  const chip = element("details", "chip"), summary = element("summary"), pre = element("pre");
  summary.append(element("span", "name", name), element("span", "size", sizeText(new Blob([text]).size)));
  if (remove) {
    const b = button("×", "quiet", event => { event.preventDefault(); remove(); });
    b.setAttribute("aria-label", "Remove " + name);
    summary.append(b);
  }
  chip.append(summary, pre);
  chip.ontoggle = () => { pre.textContent = chip.open ? text : ""; };
  return chip;
}
function fileChips(files) {
  const box = element("div", "chips");
  box.append(...files.map(file => fileChip(file)));
  return box;
}
function showAttached() {
  $("attached").replaceChildren(...attached.map(file => fileChip(file, () => {
    attached = attached.filter(other => other !== file);
    showAttached();
  })));
}
function takeAttached() {
  const files = attached;
  attached = [];
  showAttached();
  return files;
}
async function attachFiles(files) {
  const refused = [];
  for (const file of files) {
    try {
      if (attached.length >= MOST_FILES) throw new Error("A message may have at most " + MOST_FILES + " files");
      const read = await readTextFile(file);
      if (attached.length < MOST_FILES) attached = [...attached, read];
    } catch (error) {
      if (!refused.includes(error.message)) refused.push(error.message);
    }
  }
  showAttached();
  notify(refused.slice(0, 4).join(". "));
  $("input").focus();
}

// The button, and files that are dropped anywhere or pasted.
function listenForFiles() {
  $("attach").onclick = () => $("file").click();
  $("file").onchange = async () => {
    const files = [...$("file").files];
    $("file").value = "";
    await attachFiles(files);
  };
  const hasFiles = data => data && [...data.types].includes("Files");
  addEventListener("dragover", event => {
    if (!hasFiles(event.dataTransfer)) return;
    event.preventDefault();
    document.body.classList.add("drop");
  });
  addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("drop"); });
  addEventListener("drop", event => {
    document.body.classList.remove("drop");
    if (!hasFiles(event.dataTransfer)) return;
    event.preventDefault();
    attachFiles([...event.dataTransfer.files]);
  });
  $("input").addEventListener("paste", event => {
    if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    attachFiles([...event.clipboardData.files]);
  });
}
