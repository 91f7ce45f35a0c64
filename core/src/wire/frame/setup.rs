//! The fields of what a process runs and of its settings. It is told to people, so the writer cuts what is too long.

use super::fields::Field;
use crate::error::Result;
use crate::types::{GivenSetting, Setup};
use crate::wire::codec::{Reader, Writer};
use crate::wire::limits::{SETUP_SETTINGS_MAX, SETUP_TEXT_BYTES_MAX, SETUP_VERSIONS_MAX};

impl Field for Setup {
    fn write(&self, writer: &mut Writer) {
        let versions = &self.versions[..self.versions.len().min(SETUP_VERSIONS_MAX)];
        writer.list(versions, |writer, (name, version)| texts(writer, [name, version]));
        let settings = &self.settings[..self.settings.len().min(SETUP_SETTINGS_MAX)];
        writer.list(settings, |writer, GivenSetting { name, value, origin }| texts(writer, [name, value, origin]));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            versions: reader.list(SETUP_VERSIONS_MAX, "versions", |reader| {
                Ok((text(reader, "name of a version")?, text(reader, "version")?))
            })?,
            settings: reader.list(SETUP_SETTINGS_MAX, "settings", |reader| {
                Ok(GivenSetting {
                    name: text(reader, "name of a setting")?,
                    value: text(reader, "value of a setting")?,
                    origin: text(reader, "origin of a setting")?,
                })
            })?,
        })
    }
}

fn texts<const N: usize>(writer: &mut Writer, texts: [&String; N]) {
    texts.into_iter().for_each(|text| writer.text(text, SETUP_TEXT_BYTES_MAX));
}

fn text(reader: &mut Reader<'_>, field: &str) -> Result<String> {
    reader.text(SETUP_TEXT_BYTES_MAX, field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KNOBS;
    use crate::error::Error;
    use crate::wire::Frame;

    #[test]
    fn a_process_cuts_what_nobody_would_read() {
        let version = |at: usize| (at.to_string(), "9".repeat(1000));
        let long = Setup { versions: (0..100).map(version).collect(), settings: Vec::new() };
        let Ok(Frame::Setup(read)) = Frame::decode(&Frame::Setup(long).encode(), "a peer") else { panic!() };
        assert_eq!(read.versions.len(), SETUP_VERSIONS_MAX);
        assert_eq!(read.versions[31], ("31".to_owned(), "9".repeat(SETUP_TEXT_BYTES_MAX)));
        assert!(KNOBS.len() <= SETUP_SETTINGS_MAX, "no setting is cut");
    }

    #[test]
    fn too_many_versions_and_too_long_texts_are_refused() {
        let mut many = Writer::default();
        many.list(&[(); SETUP_VERSIONS_MAX + 1], |writer, ()| writer.text("a", 9));
        let mut long = Writer::default();
        long.list(&[()], |writer, ()| writer.text(&"a".repeat(SETUP_TEXT_BYTES_MAX + 1), usize::MAX));
        for (writer, field) in [(many, "versions"), (long, "name of a version")] {
            let bytes = writer.into_bytes();
            let error = Setup::read(&mut Reader::new(&bytes, "a peer")).unwrap_err();
            assert!(matches!(&error, Error::Protocol { field: of, .. } if of == field), "{error}");
        }
    }
}
