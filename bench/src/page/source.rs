//! The files of results from which a page is made.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// A file of results.
pub(super) struct Source {
    /// The name of the file without its extension; also the name of its picture.
    pub(super) name: String,
    pub(super) content: Content,
}

/// The content of a file of results.
pub(super) enum Content {
    /// Written by a subcommand with `-J`.
    Results(Value),
    /// Copied into the page unchanged.
    Text(String),
}

impl Source {
    /// Reads the file.
    ///
    /// # Errors
    /// Why it cannot be read, with its path.
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|cause| format!("{}: {cause}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let content = if file.extension().is_some_and(|end| end == "txt") {
            Content::Text(text)
        } else {
            Content::Results(
                serde_json::from_str(&text).map_err(|cause| format!("{} is no JSON: {cause}", file.display()))?,
            )
        };
        Ok(Self { name, content })
    }
}
