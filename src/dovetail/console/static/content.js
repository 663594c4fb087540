// The elements for one content block: text, image, audio, link, embedded resource.
// Only media types that a browser shows harmlessly are shown; the rest can be saved.

import { button, el, moreButton, outsideLink, isWebUrl } from "./dom.js";
import { jsonTree } from "./tree.js";
import { bytes, isObject, plural, textOf } from "./format.js";

const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];
const SOUNDS = [
  "audio/wav",
  "audio/x-wav",
  "audio/wave",
  "audio/mpeg",
  "audio/mp3",
  "audio/ogg",
  "audio/webm",
  "audio/mp4",
  "audio/aac",
  "audio/flac",
];
const MAX_MEDIA = 24 * 1024 * 1024; // characters of Base64
const FOLDED = 3000; // characters of a text that are shown at first
const FOLDED_LINES = 60;
const MOST_TEXT = 500_000;

/** `openResource(uri)` shows a resource of the same server. */
export function drawBlock(block, openResource) {
  try {
    return drawAnyBlock(block, openResource);
  } catch {
    return el("p", { class: "muted" }, "This part can't be shown; the raw messages have it.");
  }
}

function drawAnyBlock(block, openResource) {
  if (!isObject(block)) return drawJson(block);
  const draw = Object.hasOwn(BLOCKS, block.type) ? BLOCKS[block.type] : drawJson;
  const drawn = draw(block, openResource);
  const marks = marksOf(block);
  return marks.length
    ? el("div", { class: "block" }, el("p", { class: "chips" }, marks), drawn)
    : el("div", { class: "block" }, drawn);
}

const BLOCKS = {
  text: (block) => foldedText(textOf(block.text)),
  image: (block) => drawMedia(block.data, block.mimeType, "Image"),
  audio: (block) => drawMedia(block.data, block.mimeType, "Audio"),
  resource_link: drawLink,
  resource: (block) => drawResource(block.resource),
};

function drawJson(value) {
  return jsonTree(value);
}

/** Whether what is shown comes from outside of the server, and so may try to give orders. */
export function untrustedMark(meta) {
  if (!isObject(meta) || !meta["dovetail/untrusted"]) return null;
  return el(
    "span",
    {
      class: "chip warn",
      title: "The server says that this comes from outside. A model should not follow orders in it.",
    },
    "Untrusted content",
  );
}

function marksOf(block) {
  const audience = Array.isArray(block.annotations?.audience) ? block.annotations.audience.slice(0, 4) : [];
  const priority = block.annotations?.priority;
  return [
    untrustedMark(block._meta),
    audience.length > 0 && el("span", { class: "chip" }, `for ${audience.join(", ")}`),
    typeof priority === "number" && el("span", { class: "chip" }, `priority ${priority}`),
  ].filter(Boolean);
}

/** A long text begins folded, and even unfolded it is bounded. */
export function foldedText(text) {
  const short = firstPart(text);
  const body = el("pre", { class: "text" }, short);
  if (short.length === text.length) return body;
  const bring = () => {
    body.textContent = text.length > MOST_TEXT ? `${text.slice(0, MOST_TEXT)}\n… the rest is not shown` : text;
    return body;
  };
  const unfold = moreButton(`Show all (${plural(text.length, "character")})`, bring, { class: "small" });
  return el("div", {}, body, unfold, save(new Blob([text], { type: "text/plain" }), "result.txt"));
}

function firstPart(text) {
  const cut = text.slice(0, FOLDED);
  const lines = cut.split("\n");
  return lines.length > FOLDED_LINES ? lines.slice(0, FOLDED_LINES).join("\n") : cut;
}

function drawMedia(given, type, kind) {
  const data = packed(given);
  const name = textOf(type).toLowerCase().split(";")[0].trim();
  const allowed = kind === "Image" ? IMAGES : SOUNDS;
  const words = `${kind}, ${name || "of unknown type"}, about ${bytes(sizeOf(data ?? textOf(given)))}`;
  if (data === null) return el("p", { class: "muted" }, `${words}: its data can't be read.`);
  if (!allowed.includes(name))
    return el("div", {}, el("p", { class: "muted" }, `${words}.`), save(blobOf(data, name), "result"));
  const source = `data:${name};base64,${data}`;
  const player =
    kind === "Image"
      ? el("img", { src: source, alt: words })
      : el("audio", { controls: true, src: source, "aria-label": words });
  return el(
    "figure",
    { class: "media" },
    player,
    el("figcaption", { class: "muted" }, words, " ", save(blobOf(data, name), `result.${name.split("/")[1]}`)),
  );
}

/** Base64 without spaces and line ends; null if it is none. */
function packed(data) {
  if (typeof data !== "string" || data.length > MAX_MEDIA) return null;
  const text = data.replace(/\s/g, "");
  const odd = text.length % 4;
  const isWhole = odd === 0 || (odd !== 1 && !text.endsWith("="));
  return isWhole && /^[A-Za-z0-9+/]*={0,2}$/.test(text) ? text : null;
}

function sizeOf(text) {
  return Math.round((text.length * 3) / 4);
}

function blobOf(data, type) {
  const binary = atob(data);
  const harmless = IMAGES.includes(type) || SOUNDS.includes(type) ? type : "application/octet-stream";
  return new Blob([Uint8Array.from(binary, (letter) => letter.charCodeAt(0))], { type: harmless });
}

function save(blob, name) {
  return button(
    "Save",
    () => {
      const link = el("a", { href: URL.createObjectURL(blob), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    },
    { class: "small quiet" },
  );
}

function drawLink(block, openResource) {
  const uri = textOf(block.uri);
  const about = [
    textOf(block.title) || textOf(block.name),
    textOf(block.mimeType),
    Number.isFinite(block.size) ? bytes(block.size) : "",
  ];
  return el(
    "div",
    { class: "resource-link" },
    el(
      "p",
      {},
      el("strong", {}, about[0] || "Resource"),
      " ",
      el("span", { class: "muted" }, about.slice(1).filter(Boolean).join(" · ")),
    ),
    block.description && el("p", { class: "muted" }, textOf(block.description)),
    el(
      "p",
      {},
      isWebUrl(uri) ? outsideLink(uri) : el("code", {}, uri),
      " ",
      button("Open resource", () => openResource?.(uri), { class: "small" }),
    ),
  );
}

/** The contents of a resource, embedded or read. */
function drawResource(resource) {
  if (!isObject(resource)) return drawJson(resource);
  const type = textOf(resource.mimeType);
  const head = el(
    "p",
    { class: "muted" },
    el("code", {}, textOf(resource.uri)),
    type && ` · ${type}`,
    " ",
    untrustedMark(resource._meta),
  );
  return el("div", { class: "block" }, head, contentsOf(resource, type));
}

function contentsOf(resource, type) {
  if (typeof resource.text === "string") return textOrTree(resource.text, type);
  if (type.startsWith("image/")) return drawMedia(resource.blob, type, "Image");
  if (type.startsWith("audio/")) return drawMedia(resource.blob, type, "Audio");
  const data = packed(resource.blob);
  if (data === null) return drawJson(resource);
  return el("p", {}, `${bytes(sizeOf(data))} of ${type || "data"} `, save(blobOf(data, type), "resource"));
}

function textOrTree(text, type) {
  if (!/\bjson\b/.test(type)) return foldedText(text);
  try {
    return jsonTree(JSON.parse(text));
  } catch {
    return foldedText(text);
  }
}
