//! The keys of a section in the order in which its type has them, which schemas do not keep.

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// The keys of a struct, as it asks for them when it is read.
pub(super) fn of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut found: &[&str] = &[];
    let _ = T::deserialize(Asked(&mut found));
    found
}

/// Reads nothing, and notes what it is requested.
struct Asked<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("nothing is read"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("this is no section"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_come_in_the_order_of_their_type() {
        let keys = super::of::<crate::Limits>();
        assert_eq!(keys[..2], ["header_timeout", "header_size"]);
        assert!(super::of::<String>().is_empty());
    }
}
