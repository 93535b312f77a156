"use strict";
// Shared by the other files: elements, the clipboard, and names of keys on this machine.
const $ = id => document.getElementById(id);
const ON_MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const BY_TOUCH = matchMedia("(pointer: coarse)").matches;

function element(tag, name, text) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text !== undefined) e.textContent = text;
  return e;
}
function button(text, name, action) {
  const b = element("button", name, text);
  b.type = "button";
  b.onclick = action;
  return b;
}
// Pages that were not loaded over https or from this machine cannot use navigator.clipboard.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
function copyButton(text) {
  const b = button("Copy", "quiet", async () => {
    await copyText(text());
    b.textContent = "Copied";
    setTimeout(() => { b.textContent = "Copy"; }, 1500);
  });
  return b;
}
function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = area.scrollHeight + 2 + "px";
}
// Alt and a letter. On a Mac, Option writes other characters, so the physical key counts there.
function isAltKey(event, letter) {
  if (!event.altKey || event.ctrlKey || event.metaKey) return false;
  return event.key.toLowerCase() === letter || (ON_MAC && event.code === "Key" + letter.toUpperCase());
}
const altName = letter => (ON_MAC ? "⌥" : "Alt+") + letter.toUpperCase();
