// oncrpc (npm) calls a server of ../c/types.x, whose port is the argument: prints what it saw. For the Node.js
// that the package names (0.10): with later ones it does not even answer itself.
var rpc = require('oncrpc');
var util = require('util');
var assert = require('assert');

var log = { trace: function () { return false; }, error: function (error) { throw error; }, child: function () { return log; } };

// A call of any procedure, and a reply that is kept as bytes: the package has types for the portmapper alone.
function Call(proc, args) {
    rpc.RpcCall.call(this, { incoming: false, proc: proc });
    this.args = args;
}
util.inherits(Call, rpc.RpcCall);
Call.prototype.writeHead = function () {
    var xdr = this._serialize(this.args.length);
    xdr.writeRaw(this.args);
    this.write(xdr.buffer());
};
function Reply(message) {
    rpc.RpcReply.call(this, message);
    this.bytes = [];
}
util.inherits(Reply, rpc.RpcReply);
Reply.prototype._transform = function (chunk, encoding, done) {
    this.bytes.push(chunk);
    done();
};

function text(string) {
    var xdr = new rpc.XDR(new Buffer(rpc.XDR.byteLength(string)));
    xdr.writeString(string);
    return xdr.buffer();
}
function number(value) {
    var xdr = new rpc.XDR(new Buffer(4));
    xdr.writeInt(value);
    return xdr.buffer();
}

var PROGRAM = 0x20001234, NULLPROC = 0, ECHO_INT = 1, ECHO_BULK = 11, ECHO_NAME = 13, WHO = 17;
var bulk = new Buffer(100003);
for (var i = 0; i < bulk.length; i++) bulk[i] = i * 7 + (i >> 8);
var opaque = new rpc.XDR(new Buffer(rpc.XDR.byteLength(bulk)));
opaque.writeOpaque(bulk);

// What comes back is what went out, but where an error is expected, by name.
var cases = [
    [1, NULLPROC, new Buffer(0), new Buffer(0)],
    [1, ECHO_INT, number(0xfffffffb), number(0xfffffffb)],
    [1, ECHO_NAME, text('a name'), text('a name')],
    [1, ECHO_BULK, opaque.buffer(), opaque.buffer()],
    [1, WHO, new Buffer(0), number(0xffffffff)],
    [1, 999, new Buffer(0), 'RpcProcedureUnavailableError'],
    [1, ECHO_NAME, number(60), 'RpcGarbageArgumentsError'],
    [7, NULLPROC, new Buffer(0), 'RpcProgramMismatchError'],
    [1, ECHO_INT, number(5), number(5)]
];

var client = rpc.createClient({
    log: log, url: 'tcp://127.0.0.1:' + process.argv[2], program: PROGRAM, version: 1
});
client.on('error', function (error) { throw error; });
client.on('connect', function next() {
    if (cases.length === 0) {
        console.log('all as expected');
        client.close();
        return;
    }
    var one = cases.shift(), expected = one[3];
    var call = new Call(one[1], one[2]);
    client.version = one[0];
    client._rpc(call, Reply, function (error, reply) {
        if (error) {
            assert.ok(error instanceof rpc[expected], error.stack);
            if (one[0] === 7) assert.deepEqual(error.mismatch_info, { low: 1, high: 1 });
            next();
            return;
        }
        reply.on('data', function () {});
        reply.once('end', function () {
            assert.equal(Buffer.concat(reply.bytes).toString('hex'), expected.toString('hex'), one[1]);
            next();
        });
    });
    call.end();
});
