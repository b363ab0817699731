//! Fields that a configuration puts on answers.

use firstflight_config::ConfigError;
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Fields to put on answers, in place of those of the same names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(HeaderName, HeaderValue)>);

impl Fields {
    /// A site's fields.
    ///
    /// # Errors
    /// [`ConfigError::Setting`] for what only the server itself can say.
    pub(crate) fn new(fields: &[(HeaderName, HeaderValue)]) -> Result<Self, ConfigError> {
        match fields.iter().find(|(name, _)| OURS.contains(name)) {
            Some((name, _)) => Err(ConfigError::Setting(format!(
                "the field {name} cannot be set on answers, because it follows from how they are \
                 sent; leave it out"
            ))),
            None => Ok(Self(fields.to_vec())),
        }
    }

    /// A route's fields, and these for all other names.
    ///
    /// # Errors
    /// As [`Fields::new`].
    pub(crate) fn and(&self, route: &[(HeaderName, HeaderValue)]) -> Result<Self, ConfigError> {
        let Self(mut fields) = Self::new(route)?;
        let others = self.0.iter().filter(|(name, _)| route.iter().all(|(ours, _)| ours != name));
        fields.extend(others.cloned());
        Ok(Self(fields))
    }

    /// Puts them on an answer; an empty value removes the field.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for (name, _) in &self.0 {
            headers.remove(name);
        }
        for (name, value) in self.0.iter().filter(|(_, value)| !value.is_empty()) {
            headers.append(name.clone(), value.clone());
        }
    }
}

/// What concerns the connection or the length of an answer.
const OURS: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    header::ALT_SVC,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &'static [(&'static str, &'static str)]) -> Vec<(HeaderName, HeaderValue)> {
        let pair =
            |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        text.iter().map(pair).collect()
    }

    #[test]
    fn a_routes_fields_come_before_its_sites_and_both_before_the_answers() {
        let site =
            Fields::new(&pairs(&[("x-a", "site"), ("x-b", "site"), ("server", "")])).unwrap();
        let route = site.and(&pairs(&[("x-b", "one"), ("x-b", "two")])).unwrap();
        let mut headers = HeaderMap::new();
        for name in ["x-b", "x-b", "server", "x-c"] {
            headers.append(name, HeaderValue::from_static("upstream"));
        }
        route.apply(&mut headers);
        let all = |name| headers.get_all(name).iter().map(|value| value.to_str().unwrap());
        assert_eq!(all("x-a").collect::<Vec<_>>(), ["site"]);
        assert_eq!(all("x-b").collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(all("x-c").collect::<Vec<_>>(), ["upstream"]);
        assert_eq!(all("server").count(), 0);
    }

    #[test]
    fn what_frames_an_answer_cannot_be_set() {
        for name in ["content-length", "transfer-encoding", "connection", "keep-alive"] {
            let fields = [(HeaderName::from_static(name), HeaderValue::from_static("x"))];
            assert!(Fields::new(&fields).unwrap_err().to_string().contains(name));
        }
    }
}
