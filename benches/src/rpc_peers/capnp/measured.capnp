@0xc7b4f0a1d2e35968;

interface Measured {
  null @0 ();
  inout @1 (procedure :UInt32, data :Data) -> (data :Data);
}
