//! The files of results that a page is made of.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// A file of results.
pub(super) struct Source {
    /// The name of the file without its end; also that of its picture.
    pub(super) name: String,
    pub(super) content: Content,
}

/// What a file of results holds.
pub(super) enum Content {
    /// What a subcommand wrote with `-J`.
    Results(Value),
    /// Taken over as it is.
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
