//! Reads the vectors and numbers of which TLS messages are made.

use crate::facts::Unknown;

/// Reads the presentation language (RFC 8446 section 3); what is too short is not TLS.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Unknown> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Unknown::NotTls)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Unknown> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Unknown::NotTls)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Unknown> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Unknown> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u24(&mut self) -> Result<u32, Unknown> {
        let [a, b, c] = self.array()?;
        Ok(u32::from_be_bytes([0, a, b, c]))
    }

    pub(crate) fn vec8(&mut self) -> Result<Self, Unknown> {
        let len = usize::from(self.u8()?);
        Ok(Self(self.take(len)?))
    }

    pub(crate) fn vec16(&mut self) -> Result<Self, Unknown> {
        let len = usize::from(self.u16()?);
        Ok(Self(self.take(len)?))
    }

    pub(crate) fn vec24(&mut self) -> Result<Self, Unknown> {
        let len = self.u24()? as usize;
        Ok(Self(self.take(len)?))
    }
}
