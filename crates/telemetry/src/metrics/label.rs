//! Labels whose values are a closed set.

use std::borrow::Cow;

/// A label and all its values, for the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelInfo {
    /// Its name.
    pub name: &'static str,
    /// Each value and what it means; empty where the values are names out of the configuration.
    pub values: &'static [(&'static str, &'static str)],
    /// What the values are, where they are not listed.
    pub meaning: &'static str,
}

impl LabelInfo {
    /// A label with values out of the configuration.
    pub const fn configured(name: &'static str, meaning: &'static str) -> Self {
        Self { name, values: &[], meaning }
    }
}

/// A label's value.
pub trait Label: Copy {
    /// The label and its values, in the order of their indices.
    const INFO: LabelInfo;

    /// Which of the values it is.
    fn index(self) -> usize;
}

/// The values of all labels of a series.
pub trait Labels: Copy {
    /// How many combinations there are.
    const COUNT: usize;

    /// Which of the combinations it is.
    fn index(self) -> usize;

    /// The labels.
    fn infos() -> Vec<LabelInfo>;

    /// The names and values of the combination at `index`.
    fn at(index: usize) -> Vec<(&'static str, Cow<'static, str>)> {
        let (mut rest, mut found) = (index, Vec::new());
        for info in Self::infos().iter().rev() {
            let (value, _) = info.values[rest % info.values.len()];
            found.push((info.name, Cow::Borrowed(value)));
            rest /= info.values.len();
        }
        found.reverse();
        found
    }
}

impl Labels for () {
    const COUNT: usize = 1;

    fn index(self) -> usize {
        0
    }

    fn infos() -> Vec<LabelInfo> {
        Vec::new()
    }
}

impl<A: Label> Labels for A {
    const COUNT: usize = A::INFO.values.len();

    fn index(self) -> usize {
        Label::index(self)
    }

    fn infos() -> Vec<LabelInfo> {
        vec![A::INFO]
    }
}

/// Several labels are one after the other, as digits are.
macro_rules! labels {
    ($($label:ident $value:ident),+) => {
        impl<$($label: Label),+> Labels for ($($label,)+) {
            const COUNT: usize = 1 $(* $label::INFO.values.len())+;

            fn index(self) -> usize {
                let ($($value,)+) = self;
                let index = 0;
                $(let index = index * $label::INFO.values.len() + Label::index($value);)+
                index
            }

            fn infos() -> Vec<LabelInfo> {
                vec![$($label::INFO),+]
            }
        }
    };
}

labels!(A a, B b);
labels!(A a, B b, C c);
labels!(A a, B b, C c, D d);

/// An enum as a label: each variant's documentation is what the reference says of its value.
macro_rules! label {
    (
        $(#[doc = $about:literal])+
        $name:ident as $label:literal {
            $($(#[doc = $meaning:literal])+ $variant:ident = $value:literal,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// As label, logs and the console have it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $value,)+
                }
            }
        }

        impl crate::metrics::label::Label for $name {
            const INFO: crate::metrics::label::LabelInfo = crate::metrics::label::LabelInfo {
                name: $label,
                values: &[$(($value, concat!($($meaning),+))),+],
                meaning: "",
            };

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

pub(crate) use label;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{HandshakeKind, TlsVersion, Transport};

    #[test]
    fn each_combination_has_its_place_and_its_names() {
        type Three = (TlsVersion, HandshakeKind, Transport);
        let mut seen = Vec::new();
        for version in TlsVersion::ALL {
            for kind in HandshakeKind::ALL {
                for transport in Transport::ALL {
                    let index = Labels::index((*version, *kind, *transport));
                    let at = Three::at(index);
                    let names = at.iter().map(|(_, value)| value.as_ref()).collect::<Vec<_>>();
                    assert_eq!(names, [version.name(), kind.name(), transport.name()]);
                    seen.push(index);
                }
            }
        }
        assert_eq!(seen, (0..Three::COUNT).collect::<Vec<_>>());
    }
}
