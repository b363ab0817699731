//! What visits differ in.

use std::fmt;
use std::str::FromStr;

use crate::LabError;

/// What is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VisitPage {
    /// A page of 1 KiB and nothing else.
    Small,
    /// A page with 20 subresources: a style sheet, three scripts, sixteen pictures.
    Resources,
    /// A picture of 1 MiB.
    Image,
}

impl VisitPage {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Small, Self::Resources, Self::Image];

    /// The name in tables and flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Resources => "resources",
            Self::Image => "image",
        }
    }
}

impl fmt::Display for VisitPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for VisitPage {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let found = Self::ALL.into_iter().find(|page| page.name() == text);
        found.ok_or_else(|| LabError::UnknownPage {
            name: text.to_owned(),
            known: VisitPage::ALL.map(VisitPage::name).join(", "),
        })
    }
}

/// What a visit is to the browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Visiting {
    /// It knows nothing of the server.
    First,
    /// It has been there before, and 0-RTT is off.
    Off,
    /// It has been there before, and 0-RTT is on.
    On,
}

impl Visiting {
    pub(crate) const ALL: [Self; 3] = [Self::First, Self::Off, Self::On];

    /// The name in the record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_others_are_told_what_is_allowed() {
        for page in VisitPage::ALL {
            assert_eq!(page.to_string().parse::<VisitPage>().unwrap(), page);
        }
        let refused = "large".parse::<VisitPage>().unwrap_err().to_string();
        assert!(VisitPage::ALL.iter().all(|page| refused.contains(page.name())), "{refused}");
    }
}
