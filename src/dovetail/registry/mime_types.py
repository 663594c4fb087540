"""The type of a file: its name goes in, a MIME type comes out."""

import re

# The standard library's table differs between systems and versions; this one does not. "type:ending,ending …"
_TYPE_TABLE = {
    "text/": "plain:txt,text,log,cfg,conf,ini,properties,lock,rst,adoc,tex,srt,license,licence,copying,notice,authors,"
    "readme,changelog,todo,makefile,dockerfile,gitignore,gitattributes,dockerignore,editorconfig "
    "markdown:md,markdown,mdx html:html,htm css:css csv:csv tab-separated-values:tsv calendar:ics vcard:vcf vtt:vtt "
    "javascript:js,mjs,cjs,jsx",
    "text/x-": "typescript:ts,tsx,mts,cts python:py,pyi,pyw rust:rs go:go c:c,h c++:cc,cpp,cxx,hh,hpp,hxx csharp:cs "
    "java:java kotlin:kt,kts swift:swift ruby:rb php:php perl:pl,pm lua:lua r:r scala:scala haskell:hs elixir:ex,exs "
    "erlang:erl,hrl clojure:clj,cljs,edn dart:dart julia:jl zig:zig asm:s,asm shellscript:sh,bash,zsh,fish,ksh "
    "powershell:ps1,psm1 batch:bat,cmd diff:diff,patch protobuf:proto scss:scss,sass less:less vue:vue svelte:svelte",
    "application/": "json:json,map jsonl:jsonl,ndjson geo+json:geojson ld+json:jsonld x-ipynb+json:ipynb toml:toml "
    "yaml:yaml,yml xml:xml,xsd,xsl,xslt,plist xhtml+xml:xhtml sql:sql graphql:graphql,gql rtf:rtf pdf:pdf zip:zip,whl "
    "gzip:gz,tgz x-bzip2:bz2 x-xz:xz zstd:zst x-tar:tar x-7z-compressed:7z java-archive:jar wasm:wasm epub+zip:epub "
    "vnd.sqlite3:sqlite,sqlite3 vnd.apache.parquet:parquet msword:doc vnd.ms-excel:xls vnd.ms-powerpoint:ppt",
    "application/vnd.openxmlformats-officedocument.": "wordprocessingml.document:docx spreadsheetml.sheet:xlsx "
    "presentationml.presentation:pptx",
    "application/vnd.oasis.opendocument.": "text:odt spreadsheet:ods presentation:odp",
    "image/": "png:png jpeg:jpg,jpeg gif:gif webp:webp avif:avif bmp:bmp tiff:tif,tiff svg+xml:svg x-icon:ico",
    "audio/": "mpeg:mp3 mp4:m4a wav:wav ogg:ogg,oga,opus flac:flac",
    "video/": "mp4:mp4,m4v webm:webm quicktime:mov",
    "font/": "woff:woff woff2:woff2 ttf:ttf otf:otf",
}
_TYPES = {
    ending: family + kind
    for family, kinds in _TYPE_TABLE.items()
    for kind, _, endings in (each.partition(":") for each in kinds.split())
    for ending in endings.split(",")
}


def type_of_uri(uri: str) -> str | None:
    """The type that a URI's ending stands for; None if it has none that is known."""
    name = re.split("[?#]", uri)[0].rpartition("/")[2]
    return _TYPES.get(name.rpartition(".")[2].lower()) if "." in name else None


def guess_mime_type(name: str) -> str:
    """The type that the ending (or, for Makefile, LICENSE and the like, the whole name) stands for, on every system."""
    ending = name.rpartition("/")[2].rpartition(".")[2]
    return _TYPES.get(ending.lower(), "application/octet-stream")
