//! Typed arrays of kernel arguments and results.

/// The elements of one array, or a scalar as an array of one element.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// A type of elements that [`Values`] holds.
pub(crate) trait Element: Copy {
    /// The elements of `values`, if they have this type.
    fn of(values: &Values) -> Option<&[Self]>;
}

macro_rules! elements {
    ($($variant:ident $type:ident,)*) => {
        $(
            impl Element for $type {
                fn of(values: &Values) -> Option<&[Self]> {
                    match values {
                        Values::$variant(elements) => Some(elements),
                        _ => None,
                    }
                }
            }

            impl From<Vec<$type>> for Values {
                fn from(elements: Vec<$type>) -> Self {
                    Values::$variant(elements)
                }
            }
        )*

        impl Values {
            /// The name of the type, as in the manifest.
            pub(crate) fn type_name(&self) -> &'static str {
                match self {
                    $(Values::$variant(_) => stringify!($type),)*
                }
            }

            pub(crate) fn len(&self) -> usize {
                match self {
                    $(Values::$variant(elements) => elements.len(),)*
                }
            }

            /// The elements in memory, in the byte order of the device.
            pub(crate) fn bytes(&self) -> Vec<u8> {
                match self {
                    $(Values::$variant(elements) => elements.iter().flat_map(|x| x.to_le_bytes()).collect(),)*
                }
            }

            /// Elements of the type of `self`, read from the memory of the device.
            pub(crate) fn like(&self, bytes: &[u8]) -> Values {
                match self {
                    $(Values::$variant(_) => {
                        let element = |chunk: &[u8]| $type::from_le_bytes(chunk.try_into().unwrap());
                        Values::$variant(bytes.chunks_exact(size_of::<$type>()).map(element).collect())
                    })*
                }
            }

            /// The elements as numbers, rounded if 53 bits do not hold them.
            pub(crate) fn numbers(&self) -> Vec<f64> {
                match self {
                    $(Values::$variant(elements) => elements.iter().map(|&x| x as f64).collect(),)*
                }
            }

            pub(crate) fn sorted(&self) -> Values {
                match self {
                    $(Values::$variant(elements) => {
                        let mut elements = elements.clone();
                        elements.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
                        Values::$variant(elements)
                    })*
                }
            }
        }
    };
}

elements! { U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, F32 f32, F64 f64, }
