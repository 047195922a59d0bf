//! The files of one compilation, and places in them.

use codespan_reporting::files::{Error, Files, line_starts};
use std::ops::Range;

/// Longest source file in bytes. Interface files have kilobytes; this keeps every table small.
pub const MAX_FILE: usize = 4 << 20;

/// A range of bytes in one file of a [`SourceMap`].
///
/// All spans are equal to each other: comparing two syntax trees means comparing what they say,
/// wherever it stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// Index of the file.
    pub file: u32,
    /// First byte.
    pub start: u32,
    /// Byte after the last.
    pub end: u32,
}

impl PartialEq for Span {
    fn eq(&self, _: &Span) -> bool {
        true
    }
}

impl Eq for Span {}

impl Span {
    /// From the start of this span to the end of another one of the same file.
    #[must_use]
    pub fn to(self, end: Span) -> Span {
        if self.file == end.file && end.end >= self.start {
            Span { end: end.end, ..self }
        } else {
            self
        }
    }

    /// The bytes.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A line marker of a preprocessor: from here on, lines are counted from `line` in `name`.
#[derive(Clone, Debug)]
struct Marker {
    at: u32,
    line: u32,
    name: String,
}

#[derive(Clone, Debug)]
struct File {
    name: String,
    text: String,
    line_starts: Vec<usize>,
    markers: Vec<Marker>,
}

/// The files that were read, in the order of reading.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: Vec<File>,
}

impl SourceMap {
    /// No files yet.
    #[must_use]
    pub fn new() -> SourceMap {
        SourceMap::default()
    }

    /// Adds a file and gives its index.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> u32 {
        let text = text.into();
        let line_starts = line_starts(&text).collect();
        self.files.push(File { name: name.into(), text, line_starts, markers: Vec::new() });
        u32::try_from(self.files.len() - 1).expect("includes are limited")
    }

    /// The text of a file.
    #[must_use]
    pub fn text(&self, file: u32) -> &str {
        self.files.get(file as usize).map_or("", |file| &file.text)
    }

    /// The name of a file.
    #[must_use]
    pub fn file_name(&self, file: u32) -> &str {
        self.files.get(file as usize).map_or("", |file| &file.name)
    }

    /// Number of files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The text of a span.
    #[must_use]
    pub fn slice(&self, span: Span) -> &str {
        self.text(span.file).get(span.range()).unwrap_or("")
    }

    /// Line and column of the start of a span, both from 1; the column counts characters.
    #[must_use]
    pub fn line_column(&self, span: Span) -> (usize, usize) {
        let Some(file) = self.files.get(span.file as usize) else { return (1, 1) };
        let line = file.line_starts.partition_point(|start| *start <= span.start as usize).max(1);
        let start = file.line_starts[line - 1];
        let column = file.text.get(start..span.start as usize).map_or(0, |s| s.chars().count());
        (line, column + 1)
    }

    /// Length in bytes of the longest line that a span touches.
    pub(crate) fn line_len(&self, span: Span) -> usize {
        let Some(file) = self.files.get(span.file as usize) else { return 0 };
        let first = file.line_starts.partition_point(|start| *start <= span.start as usize).max(1);
        let ends = file.line_starts.iter().copied().skip(first).chain([file.text.len()]);
        let starts = file.line_starts[first - 1..].iter().copied();
        starts
            .zip(ends)
            .take_while(|(start, _)| *start <= span.end as usize)
            .map(|(start, end)| end.saturating_sub(start))
            .max()
            .unwrap_or(0)
    }

    /// What stands around the start of a span on its line.
    pub(crate) fn around(&self, span: Span) -> String {
        const EACH_SIDE: usize = 30;
        let text = self.text(span.file);
        let at = text.floor_char_boundary(span.start as usize);
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
        let from = text.floor_char_boundary(at.saturating_sub(EACH_SIDE)).max(line);
        let to = text.floor_char_boundary(at + EACH_SIDE).min(end);
        let before = if from > line { "..." } else { "" };
        let behind = if to < end { "..." } else { "" };
        format!("{before}{}{behind}", text[from..to].replace(|c: char| c.is_control(), " "))
    }

    /// Notes a line marker: the line after byte `at` of `file` is line `line` of `name`.
    pub(crate) fn mark(&mut self, file: u32, at: u32, line: u32, name: &str) {
        if let Some(file) = self.files.get_mut(file as usize) {
            file.markers.push(Marker { at, line, name: name.to_owned() });
        }
    }

    /// What the markers before a span say about its origin: file and line.
    #[must_use]
    pub fn origin(&self, span: Span) -> Option<(&str, usize)> {
        let file = self.files.get(span.file as usize)?;
        let marker = file.markers.iter().rev().find(|marker| marker.at <= span.start)?;
        let line_of = |at: u32| file.line_starts.partition_point(|start| *start <= at as usize);
        let lines = line_of(span.start).saturating_sub(line_of(marker.at) + 1);
        Some((&marker.name, marker.line as usize + lines))
    }
}

impl<'a> Files<'a> for SourceMap {
    type FileId = u32;
    type Name = &'a str;
    type Source = &'a str;

    fn name(&'a self, id: u32) -> Result<&'a str, Error> {
        Ok(&self.files.get(id as usize).ok_or(Error::FileMissing)?.name)
    }

    fn source(&'a self, id: u32) -> Result<&'a str, Error> {
        Ok(&self.files.get(id as usize).ok_or(Error::FileMissing)?.text)
    }

    fn line_index(&'a self, id: u32, byte: usize) -> Result<usize, Error> {
        let file = self.files.get(id as usize).ok_or(Error::FileMissing)?;
        Ok(file.line_starts.partition_point(|start| *start <= byte).saturating_sub(1))
    }

    fn line_range(&'a self, id: u32, line: usize) -> Result<Range<usize>, Error> {
        let file = self.files.get(id as usize).ok_or(Error::FileMissing)?;
        let start = *file.line_starts.get(line).ok_or(Error::LineTooLarge {
            given: line,
            max: file.line_starts.len().saturating_sub(1),
        })?;
        let end = file.line_starts.get(line + 1).copied().unwrap_or(file.text.len());
        Ok(start..end)
    }
}
