import torch, torch.nn as nn, torch.nn.functional as F, numpy as np, time
import pstranspile.torch as pt
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.e=nn.Embedding(50,8); s.o=nn.Linear(8,50); s.bn=nn.BatchNorm1d(8)
    def forward(s,i): return s.o(s.e(i))
def masked(model, tokens, target):
    logits = model(tokens)
    return F.cross_entropy(logits.view(-1, 50), target.view(-1), ignore_index=1)
def summed(model, tokens, target):
    logits = model(tokens)
    return F.cross_entropy(logits.view(-1, 50), target.view(-1), reduction="sum")
def good(model, tokens, target):
    logits = model(tokens)
    return F.cross_entropy(logits.view(-1, 50), target.view(-1))
def inbatch(model, tokens, target):
    q=model.e(tokens).mean(1); k=model.e(target).mean(1)
    return F.cross_entropy(q @ k.T, torch.arange(q.shape[0]))
def bn(model, tokens, target):
    h=model.bn(model.e(tokens).mean(1))
    return F.cross_entropy(model.o(h), target[:,0])
def rmse(model, tokens, target):
    h=model.o(model.e(tokens).mean(1))
    return F.mse_loss(h[:,0], target[:,0].float()).sqrt()
def variance(model, tokens, target):
    h=model.o(model.e(tokens).mean(1))
    return h.var(0).mean()+h.mean()
def hard(model, tokens, target):
    l=F.cross_entropy(model.o(model.e(tokens).mean(1)), target[:,0], reduction="none")
    return l.topk(4)[0].mean()
def weighted(model, tokens, target):
    l=F.cross_entropy(model.o(model.e(tokens).mean(1)), target[:,0], reduction="none")
    w=(target[:,1]%5).float()+0.1
    return (l*w).sum()/w.sum()
b=(torch.randint(1,50,(8,6)),torch.randint(1,50,(8,6)))
for loss in (masked,summed,good,inbatch,bn,rmse,variance,hard,weighted):
    m=Net(); t0=time.time()
    print(loss.__name__,"==>",pt.check(m,b,loss=loss,optimizer=torch.optim.AdamW(m.parameters(),lr=0.01))); print(time.time()-t0)
