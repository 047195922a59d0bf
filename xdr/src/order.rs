//! Byte orders.

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Network {}
    impl Sealed for super::Little {}
}

/// The order of the bytes of a number.
pub trait Order: sealed::Sealed {
    /// The bytes of a 32-bit number.
    fn from_u32(value: u32) -> [u8; 4];
    /// The number of four bytes.
    fn to_u32(bytes: [u8; 4]) -> u32;
    /// The bytes of a 64-bit number.
    fn from_u64(value: u64) -> [u8; 8];
    /// The number of eight bytes.
    fn to_u64(bytes: [u8; 8]) -> u64;
}

/// Most significant byte first: RFC 4506.
#[derive(Clone, Copy, Debug)]
pub enum Network {}

/// Least significant byte first: what processes of one machine exchange.
#[derive(Clone, Copy, Debug)]
pub enum Little {}

impl Order for Network {
    #[inline]
    fn from_u32(value: u32) -> [u8; 4] {
        value.to_be_bytes()
    }
    #[inline]
    fn to_u32(bytes: [u8; 4]) -> u32 {
        u32::from_be_bytes(bytes)
    }
    #[inline]
    fn from_u64(value: u64) -> [u8; 8] {
        value.to_be_bytes()
    }
    #[inline]
    fn to_u64(bytes: [u8; 8]) -> u64 {
        u64::from_be_bytes(bytes)
    }
}

impl Order for Little {
    #[inline]
    fn from_u32(value: u32) -> [u8; 4] {
        value.to_le_bytes()
    }
    #[inline]
    fn to_u32(bytes: [u8; 4]) -> u32 {
        u32::from_le_bytes(bytes)
    }
    #[inline]
    fn from_u64(value: u64) -> [u8; 8] {
        value.to_le_bytes()
    }
    #[inline]
    fn to_u64(bytes: [u8; 8]) -> u64 {
        u64::from_le_bytes(bytes)
    }
}
