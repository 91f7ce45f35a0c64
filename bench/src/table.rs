//! Columns of text, aligned to the right. Where they are wider than a terminal, long cells wrap.

use std::fmt;

use comfy_table::{CellAlignment, ContentArrangement, presets};

/// A heading and rows of equally many cells.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const COLUMNS: usize>(heading: [&str; COLUMNS]) -> Self {
        Self { rows: vec![heading.map(str::to_owned).to_vec()] }
    }

    /// # Panics
    /// If the heading has another number of cells.
    pub(crate) fn push<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        assert_eq!(COLUMNS, self.rows[0].len(), "a row has a cell for each heading");
        self.rows.push(cells.to_vec());
    }

    /// The table with lines of at most `columns`, if that is said.
    pub(crate) fn within(&self, columns: Option<usize>) -> String {
        let whole = self.to_string();
        let Some(columns) = columns.filter(|columns| whole.lines().any(|line| line.chars().count() > *columns)) else {
            return whole;
        };
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
        table.set_header(&self.rows[0]);
        table.add_rows(&self.rows[1..]);
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        table.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|column| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        for row in &self.rows {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            writeln!(f, "{}", cells.join("  "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["a", "long"]);
        table.push(["±100".to_owned(), "1".to_owned()]);
        assert_eq!(table.to_string(), "   a  long\n±100     1\n");
        assert_eq!(table.within(None), table.to_string());
    }

    #[test]
    fn a_table_that_is_too_wide_wraps_its_cells() {
        let mut table = Table::new(["contender", "what it is"]);
        table.push(["local".to_owned(), "workers that add in shared memory".to_owned()]);
        let text = table.within(Some(24));
        assert!(text.lines().all(|line| line.chars().count() <= 24), "{text}");
        for word in ["local", "workers", "shared"] {
            assert!(text.contains(word), "{text}");
        }
        assert_eq!(table.within(Some(80)), table.to_string(), "wide enough");
    }
}
