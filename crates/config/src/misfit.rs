//! What is wrong with a setting, and which one.

use std::borrow::Cow;
use std::fmt;

/// A setting that cannot be, by its place among the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {reason}")]
pub struct SettingError {
    /// Where.
    pub at: Place,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

/// Where a setting stands: `site[0].route[2].root`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(Vec<Step>);

/// One step into settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the value of a key.
    Key(Cow<'static, str>),
    /// To an element of a list, from 0 on.
    Index(usize),
}

impl SettingError {
    /// At a key of the settings that are looked at.
    pub fn new(key: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> Self {
        Self { at: Place(vec![Step::Key(key.into())]), reason: reason.into() }
    }

    /// Of the settings that are looked at, as a whole.
    pub fn here(reason: impl Into<String>) -> Self {
        Self { at: Place::default(), reason: reason.into() }
    }

    /// The same, seen from the settings that have those under a key.
    pub fn under(mut self, key: impl Into<Cow<'static, str>>) -> Self {
        self.at.0.insert(0, Step::Key(key.into()));
        self
    }

    /// The same, seen from settings that have those as one element of a list.
    pub fn under_index(mut self, key: &'static str, index: usize) -> Self {
        self.at.0.splice(0..0, [Step::Key(key.into()), Step::Index(index)]);
        self
    }
}

impl Place {
    /// The steps, the outermost first.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if at == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_shown_as_one_would_write_it() {
        let misfit = SettingError::new("root", "no").under_index("route", 2).under_index("site", 0);
        assert_eq!(misfit.to_string(), "site[0].route[2].root: no");
        assert_eq!(SettingError::here("no").under("tls").to_string(), "tls: no");
    }
}
